"""Settings of the process that training wants, for as long as it lasts."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import warnings
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def machine(threads: int | None) -> Iterator[None]:
    """Settings of the process that every run wants, put back afterwards. threads: None leaves torch's choice."""
    # glibc gives blocks of more than a few hundred kilobytes back to the kernel and asks for them again at every
    # step, and each page is cleared anew; kept, they cost nothing. The two are M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, 2**30)
        libc.mallopt(-1, 2**31 - 1)
    before, level = torch.get_num_threads(), logging.getLogger("pytorch_lightning").level
    torch.set_num_threads(threads or before)
    # Saturated scores leave denormal numbers, on which a CPU multiplies many times slower.
    torch.set_flush_denormal(True)
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            # Batches are arrays out of mapped memory: a worker would cost more than it brings.
            warnings.filterwarnings("ignore", message=".*does not have many workers.*")
            # They are resumable: the data module begins its sampler at the step of the checkpoint.
            warnings.filterwarnings("ignore", message=".*your dataloader is not resumable.*")
            warnings.filterwarnings("ignore", message=".*LeafSpec.*is deprecated.*")
            yield
    finally:
        torch.set_num_threads(before)
        torch.set_flush_denormal(False)
        logging.getLogger("pytorch_lightning").setLevel(level)

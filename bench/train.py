"""Tokens a second in training: lmab against transformers' `BertForMaskedLM` with its own collator.

Both train on the same rows with the same sizes, optimiser, schedule and clipping, in one process with one thread,
taking turns of some steps each; lmab's side is the whole of it, Lightning included. The figure is the ratio of the
medians over turns. Beside it stands the share of the machine's matrix speed (measured in the same run) that lmab's
arithmetic used.

    python -m bench.train [--turns 7] [--seconds 4]
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytorch_lightning as pl
import torch
import transformers
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch.utils.data import DataLoader

from lmab import facts
from lmab.cost import Peak
from lmab.machine import machine
from lmab.run import build_data, build_learner, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from lmab.data.module import Data

# name, overrides, aim
SIZES = (
    (
        "vocab 30522, dim 256, depth 4, length 128",
        "tokenizer.vocab=30522 tokenizer.alphabet=1000 split.train=4000 segments.length=128 trainer.batch=16 "
        "objective.mlm.rate=0.15 model.dim=256 model.depth=4 model.heads=4 model.ffn=1024",
        3.0,
    ),
    ("mini: vocab 2048, dim 64, depth 2, length 32", "", 2.5),
)


def _peer(config: dict[str, Any], data: Data, tokenizer_file: Path) -> Callable[[int], int]:
    """transformers' side: a function that trains some steps and returns the tokens it trained on."""
    model, optim, train = config["model"], config["optim"], config["trainer"]
    network = transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=model["vocab"],
            hidden_size=model["dim"],
            num_hidden_layers=model["depth"],
            num_attention_heads=model["heads"],
            intermediate_size=model["ffn"],
            max_position_embeddings=model["length"],
            hidden_dropout_prob=model["dropout"],
            attention_probs_dropout_prob=model["attention_dropout"],
        )
    ).train()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        pad_token="[PAD]",
        mask_token="[MASK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
    )
    collator = transformers.DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=config["objective"]["mlm"]["rate"]
    )
    example = data.train.rows.take(*[torch.arange(min(2000, len(data.train.rows))).numpy()] * 2)
    rows = [
        {"input_ids": tokens[:length].tolist()} for tokens, length in zip(example.tokens, example.lengths, strict=True)
    ]
    loader = DataLoader(rows, batch_size=train["batch"], shuffle=True, drop_last=True, collate_fn=collator)  # type: ignore[arg-type]
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    spared = [p for n, p in network.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    ids = {id(p) for p in spared}
    optimizer = torch.optim.AdamW(
        [
            {
                "params": [p for p in network.parameters() if id(p) not in ids],
                "weight_decay": optim["weight_decay"],
            },
            {"params": spared, "weight_decay": 0.0},
        ],
        lr=optim["lr"],
        fused=True,
    )
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 100, 100_000)

    def steps(number: int) -> int:
        tokens = 0
        for batch in itertools.islice(batches, number):
            network(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), train["clip"])
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            tokens += int(batch["attention_mask"].sum())
        return tokens

    return steps


class Turns(pl.Callback):
    """Lets the peer have a turn after each of lmab's, and times both."""

    def __init__(self, peer: Callable[[int], int], turns: int, seconds: float) -> None:
        self.peer, self.turns, self.seconds = peer, turns, seconds
        self.ours: list[float] = []
        self.theirs: list[float] = []
        self.tokens, self.steps, self.began = 0, 0, 0.0

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.tokens, self.steps = self.tokens + outputs["real"], self.steps + 1
        spent = time.perf_counter() - self.began
        if trainer.global_step < 5 or (self.began and spent < self.seconds):
            return
        if self.began:
            self.ours.append(self.tokens / spent)
            began = time.perf_counter()
            self.theirs.append(self.peer(max(2, self.steps // 3)) / (time.perf_counter() - began))
        else:
            self.peer(3)  # both have warmed up before anything counts
        trainer.should_stop = len(self.ours) == self.turns
        self.tokens, self.steps, self.began = 0, 0, time.perf_counter()


def matrix_speed() -> float:
    """FLOP/s of a large matrix product with this process' threads: the median of nine."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    found = []
    for _ in range(9):
        began = time.perf_counter()
        torch.mm(a, b)
        found.append(2 * 1024**3 / (time.perf_counter() - began))
    return statistics.median(found)


def measure(overrides: list[str], store: str, turns: int, seconds: float) -> tuple[list[float], list[float], float]:
    """Tokens a second in each turn, ours and theirs, and our FLOPs a token."""
    with initialize_config_dir(str(Path(__file__).parents[1] / "conf"), version_base="1.3"):
        cfg = compose("config", [*overrides, f"store={store}", "tracker=none", "trainer.steps=1000000"])
    config, _ = resolve(cfg)
    objectives = {name: instantiate(node) for name, node in config["objective"].items()}
    prepared, data = build_data(config, objectives)
    learner = build_learner(config, objectives, data, 0)
    callback = Turns(_peer(config, data, prepared.tokenizer), turns, seconds)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        limit_val_batches=0,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(learner, train_dataloaders=data.train_dataloader())
    return callback.ours, callback.theirs, facts.cost(learner, data, 0, 0.0, Peak(learner.device))["flops_a_token"]


@click.command()
@click.option("--turns", default=7, help="Turns of each side.")
@click.option("--seconds", default=4.0, help="Length of one of lmab's turns.")
def main(turns: int, seconds: float) -> None:
    """Print the ratios."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    # The peer gets the same settings of the process.
    with machine(threads=1), tempfile.TemporaryDirectory() as store:
        for name, overrides, aim in SIZES:
            ours, theirs, flops = measure(overrides.split(), store, turns, seconds)
            ratio = statistics.median(ours) / statistics.median(theirs)
            each = sorted(a / b for a, b in zip(ours, theirs, strict=True))
            share = statistics.median(ours) * flops / matrix_speed()
            print(
                f"{name}: {ratio:.2f} times transformers' tokens a second (turns {each[0]:.2f} to {each[-1]:.2f}, "
                f"aim {aim}); {share:.0%} of the matrix speed"
            )


if __name__ == "__main__":
    main()

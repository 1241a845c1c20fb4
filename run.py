"""Hydra's door: `python run.py` does one run, `python run.py -m ...` many."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hydra
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from lmab.store import Record


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg: DictConfig) -> object:
    # torch is imported here and not above, so that Hydra's --help and refusals answer at once.
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from lmab.lab.door import enter
    from lmab.lab.orphans import end_with_parent
    from lmab.run import run

    end_with_parent()
    inner = HydraConfig.get()

    if cfg.sweep and cfg.sweep.get("plan"):  # a worker of a study, which asks for its runs itself
        from lmab.lab.tuning.worker import work

        return work(cfg.sweep.plan)

    def one() -> Record:
        return run(cfg, overrides=list(inner.overrides.task), hydra=OmegaConf.to_yaml(inner))

    if inner.mode != RunMode.RUN:
        return one()
    # Answered here, before Hydra adds words of its own to an exception.
    record = enter(one)
    scores = ", ".join(f"{name} {value:.4f}" for name, value in record.metrics.items())
    print(f"{record.state}: {record.message or scores}\n{cfg.store}/{record.signature}/record.json")
    return record


if __name__ == "__main__":
    from lmab.lab.door import enter

    enter(main)

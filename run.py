"""Hydra's door: `python run.py` does one run, `python run.py -m ...` many."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig, OmegaConf


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg: DictConfig) -> object:
    # torch is imported here and not above, so that Hydra's --help and refusals answer at once.
    from hydra.core.hydra_config import HydraConfig

    from lmab.run import run

    inner = HydraConfig.get()
    return run(cfg, overrides=list(inner.overrides.task), hydra=OmegaConf.to_yaml(inner))


if __name__ == "__main__":
    from lmab.lab.door import enter

    enter(main)

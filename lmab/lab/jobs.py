"""What a sweeper has of Hydra: configurations composed as a launcher will compose them, and the launcher."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf, flag_override

if TYPE_CHECKING:
    from hydra.plugins.launcher import Launcher
    from hydra.types import HydraContext, TaskFunction

ROUNDS = 3  # how often work is launched whose worker died without a word (out of memory, killed)


class Hydra(NamedTuple):
    """What a sweeper is given by Hydra. asked: the overrides of Hydra's own part on the command line."""

    hydra_context: HydraContext
    task_function: TaskFunction
    config: DictConfig
    asked: list[str]


def given(context: HydraContext, task: TaskFunction, config: DictConfig) -> Hydra:
    """What a job needs of it. Knobs of the sweeper and of the launcher are left out of what is composed for a job, who
    has no use for them: a file of sweeps/ chose those two, and a job does not choose that file."""
    asked = [str(line) for line in config.hydra.overrides.hydra]
    config = config.copy()
    with flag_override(config, ["readonly", "struct"], False):
        config.hydra.overrides.hydra = [
            line for line in asked if not line.lstrip("+~").startswith(("hydra.sweeper", "hydra.launcher"))
        ]
    return Hydra(context, task, config, asked)


def compose(hydra: Hydra, overrides: list[str]) -> DictConfig:
    """The configuration of a job, as a launcher will compose it."""
    cfg = hydra.hydra_context.config_loader.load_sweep_config(hydra.config, overrides)
    OmegaConf.set_struct(cfg, False)
    cfg.pop("hydra")
    return cfg


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Its values, with every interpolation resolved."""
    values = OmegaConf.to_container(cfg, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def launcher(hydra: Hydra) -> Launcher:
    """Whichever was chosen."""
    return Plugins.instance().instantiate_launcher(
        hydra_context=hydra.hydra_context, task_function=hydra.task_function, config=hydra.config
    )


def quoted(**values: str) -> str:
    """A mapping of words as an override has it."""
    inner = ",".join(f"{key}:'{_escaped(value)}'" for key, value in values.items())
    return "{" + inner + "}"


def _escaped(value: str) -> str:
    """As Hydra reads it between quotes: backslashes count before a quote alone."""
    return re.sub(r"(\\*)('|$)", lambda found: found[1] * 2 + found[2].replace("'", "\\'"), value)

"""The face that Hydra sees: it takes plugins only from a package of this name. The work is done in lmab.lab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper

if TYPE_CHECKING:
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig


class _Many(Sweeper):
    """Keeps what Hydra hands over, and leaves the sweep to a function of lmab.lab.sweeper."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.given = (hydra_context, task_function, config)


class ClaimSweeper(_Many):
    """hydra/sweeper=claim: arms x seeds of a claim file, a verdict, a report."""

    def sweep(self, arguments: list[str]) -> Any:
        from lmab.lab.jobs import given
        from lmab.lab.sweeper import sweep_claim

        return sweep_claim(given(*self.given), arguments)


class GridSweeper(_Many):
    """hydra/sweeper=grid: the product of all lists of values, as Hydra makes it, less what is done."""

    def sweep(self, arguments: list[str]) -> Any:
        from lmab.lab.jobs import given
        from lmab.lab.sweeper import sweep_grid

        return sweep_grid(given(*self.given), arguments)


class OptunaSweeper(_Many):
    """hydra/sweeper=optuna: points that a sampler chooses, in a study that outlives the process. The settings are read
    from the configuration, where Hydra's own sweeper for Optuna has them."""

    def __init__(self, **settings: Any) -> None:
        """settings: hydra.sweeper."""
        self.settings = settings

    def sweep(self, arguments: list[str]) -> Any:
        from lmab.lab.jobs import given
        from lmab.lab.tuning.sweep import sweep_study

        return sweep_study(given(*self.given), self.settings, arguments)


for _name, _class in {"claim": ClaimSweeper, "grid": GridSweeper}.items():
    ConfigStore.instance().store(
        group="hydra/sweeper", name=_name, node={"_target_": f"{__name__}.{_class.__name__}"}, provider="lmab"
    )

"""Names of trainings whose script uses Ray Train's own `RunConfig` without a name; seen in Ray 2.60.0.

Ray Train V2 resumes a training that has the name and the storage of an earlier one, and names one after the time if its
script does not. There is no hook for the name: callbacks see a training when its storage is set up, and a program that
lacks what `RAY_TRAIN_CALLBACKS` names, such as that of `uv run`, cannot train. V1, where a name resumes nothing, stays
as it is. Imported when Python starts, so it imports nothing else, and changes Ray when the script imports it.
"""

from __future__ import annotations

from mlplatform.compat.patches import AfterImport, around

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_NAMES = "_mlplatform_names"
"""Attribute of a `RunConfig` that its script has not named: Ray's name for it, and those that were chosen, by trial."""

_made: set[str] = set()
"""Names that Ray has made; `dataclasses.replace` passes them on."""


def name_trainings(choose: Callable[[str | None], str | None]) -> None:
    """Let `choose` name this process's trainings without a name, given the id of the Tune trial, if one trains.

    None leaves the name to Ray. A `RunConfig` that is used again in the same trial keeps its name: Ray resumes then.
    """

    def mark_unnamed(config: Any) -> None:
        @around(config.RunConfig, "__post_init__")
        def make_and_mark(make: Any, self: Any) -> None:
            unnamed = not self.name or self.name in _made
            make(self)
            if unnamed:
                _made.add(self.name)
                vars(self)[_NAMES] = {"": self.name}

    def name_at_fit(trainer: Any) -> None:
        @around(trainer.DataParallelTrainer, "fit")
        def named_fit(fit: Any, self: Any) -> Any:
            config, names = self.run_config, vars(self.run_config).get(_NAMES, {})
            if config.name in names.values():
                trial = _trial()
                config.name = names[trial] = names.get(trial) or choose(trial) or config.name
                vars(config).pop("storage_context", None)  # cached, with the former name
            return fit(self)

    trainer = "ray.train.v2.api.data_parallel_trainer"
    AfterImport({"ray.train.v2.api.config": mark_unnamed, trainer: name_at_fit})


def _trial() -> str | None:
    """Return the id of the Tune trial that runs in this process; the public function warns outside of one."""
    from ray.train._internal.session import get_session

    session = get_session()
    return session.trial_info.id if session and session.trial_info else None

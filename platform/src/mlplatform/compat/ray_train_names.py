"""Names of trainings whose script uses Ray Train's own `RunConfig` without a name; seen in Ray 2.60.0.

Ray Train V2 resumes a training that has the name and the storage of an earlier one, and names one after the time if its
script does not. There is no hook for the name: callbacks see a training when its storage is set up, and a program that
lacks what `RAY_TRAIN_CALLBACKS` names, such as that of `uv run`, cannot train. V1, where a name resumes nothing, stays
as it is. Imported when Python starts, so it imports Ray only when the script has.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # `typing` and the others take longer to import than all of this
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

    Choose = Callable[[str | None], str | None]

_NAMES = "_mlplatform_names"
"""Attribute of a `RunConfig` that its script has not named: Ray's name for it, and those that were chosen, by trial."""

_made: set[str] = set()
"""Names that Ray has made; `dataclasses.replace` passes them on."""


def name_trainings(choose: Choose) -> None:
    """Let `choose` name the trainings of this process that their script does not name.

    A `RunConfig` that is used again keeps its name, with which Ray resumes, except in another trial.

    Args:
        choose: returns the name of the next training, given the id of the Tune trial that starts it, if one does; None
            leaves the name to Ray.
    """
    changes = {
        "ray.train.v2.api.config": _mark_unnamed,
        "ray.train.v2.api.data_parallel_trainer": lambda trainer: _name_at_fit(trainer, choose),
    }
    sys.meta_path.insert(0, _AfterImport(changes))


def _mark_unnamed(config: ModuleType) -> None:
    import functools

    make = config.RunConfig.__post_init__

    @functools.wraps(make)
    def make_and_mark(self: Any) -> None:
        unnamed = not self.name or self.name in _made
        make(self)
        if unnamed:
            _made.add(self.name)
            vars(self)[_NAMES] = {"": self.name}

    config.RunConfig.__post_init__ = make_and_mark


def _name_at_fit(trainer: ModuleType, choose: Choose) -> None:
    import functools

    fit = trainer.DataParallelTrainer.fit

    @functools.wraps(fit)
    def named_fit(self: Any) -> Any:
        names = vars(self.run_config).get(_NAMES, {})
        if self.run_config.name in names.values():
            trial = _trial()
            if trial in names or (name := choose(trial)) is None:
                name = names.get(trial, self.run_config.name)
            self.run_config.name = names[trial] = name
            vars(self.run_config).pop("storage_context", None)  # cached, with the former name
        return fit(self)

    trainer.DataParallelTrainer.fit = named_fit


def _trial() -> str | None:
    """Return the id of the Tune trial that runs in this process; the public function warns outside of one."""
    from ray.train._internal.session import get_session

    session = get_session()
    return session.trial_info.id if session and session.trial_info else None


class _AfterImport:
    """Import hook that changes a module right after it is loaded."""

    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        change = self._changes.pop(name, None)
        if change is None:
            return None
        from importlib.util import find_spec

        spec = find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            change(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

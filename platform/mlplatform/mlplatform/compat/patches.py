"""Functions around those of other libraries, put in place at once or right after a module is imported.

Some users are imported when Python starts, so this imports nothing then.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def around(owner: Any, name: str, *, once: bool = False) -> Callable[[Callable[..., Any]], None]:
    """Replace a function of a module or class by the decorated one, which gets it before its own arguments.

    Args:
        owner: the module or class.
        name: of the function.
        once: leave a function that was replaced before in this process, as by an earlier training.

    Raises:
        AttributeError: this version of the library has no such function.
    """
    import functools
    import inspect

    def replace(function: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        if once and hasattr(original, "replaced_by_mlplatform"):
            return

        @functools.wraps(original)
        def replacement(*arguments: Any, **options: Any) -> Any:
            return function(original, *arguments, **options)

        replacement.replaced_by_mlplatform = True  # type: ignore[attr-defined]
        has_no_self = isinstance(inspect.getattr_static(owner, name), staticmethod | classmethod)
        setattr(owner, name, staticmethod(replacement) if has_no_self else replacement)

    return replace


class AfterImport:
    """Import hook that changes modules right after they are loaded.

    Args:
        changes: by the name of a module, a function that gets it.
    """

    def __init__(self, changes: dict[str, Callable[[Any], None]]) -> None:
        self._changes = changes
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the module's own spec, with a loader that changes it; None for other modules."""
        if (change := self._changes.pop(name, None)) is None:
            return None
        from importlib.util import find_spec

        loader: Any = (spec := find_spec(name)) and spec.loader
        if loader:
            load = loader.exec_module
            loader.exec_module = lambda module: (load(module), change(module))
        return spec

"""Path of the checkpoint to resume from, for scripts with the same code for the first start and for restarts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.train import Checkpoint


@contextmanager
def resume_path(checkpoint: Checkpoint | None, file: str = "") -> Iterator[str | None]:
    """Provide the local path of the checkpoint to resume from; None at the first start, when there is none.

    The files are on the local disk, downloaded if necessary, until the block ends.

        with mlplatform.resume_path(ray.train.get_checkpoint(), "checkpoint.ckpt") as path:
            trainer.fit(model, ckpt_path=path)

    Args:
        checkpoint: the result of `ray.train.get_checkpoint()` or `ray.tune.get_checkpoint()`.
        file: path of the file or folder within the checkpoint; empty for the checkpoint's own folder.

    Returns:
        A context manager for the absolute path. The file itself is not checked.
    """
    if checkpoint is None:
        yield None
        return
    with checkpoint.as_directory() as folder:
        yield str(Path(folder, file).absolute())

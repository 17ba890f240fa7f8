"""Parallel transfer of many files with a progress bar."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

PARALLEL = 16
"""Files in transfer at the same time; many data sets consist of small ones, where round trips dominate."""

_REFRESH_SECONDS = 0.2


class Counter:
    """Bytes that several threads have moved so far."""

    def __init__(self) -> None:
        self._value = 0
        self._growing: set[Path] = set()
        self._stopped = False
        self._lock = threading.Lock()

    @property
    def value(self) -> int:
        with self._lock:
            return self._value + sum(path.stat().st_size for path in self._growing if path.exists())

    def add(self, count: int) -> None:
        """Count more bytes; raises once the transfer was aborted, so that its threads end."""
        if self._stopped:
            raise InterruptedError("the transfer was aborted")
        with self._lock:
            self._value += count

    @contextmanager
    def growing(self, path: Path) -> Iterator[None]:
        """Count the bytes of a file while a library that reports no progress writes it."""
        with self._lock:
            self._growing.add(path)
        try:
            yield
        finally:
            with self._lock:
                self._growing.discard(path)
        self.add(path.stat().st_size)

    def stop(self) -> None:
        self._stopped = True


def run(what: str, total: int, tasks: Sequence[Callable[[Counter], None]]) -> None:
    """Run tasks in parallel, with a progress bar in a terminal or a notebook.

    Args:
        what: a few words for the progress bar.
        total: bytes of all tasks together.
        tasks: called with the counter to which each adds the bytes that it has moved.

    Raises:
        Exception: the error of the first task that failed; tasks that have not begun are not started.
    """
    moved = Counter()
    # Leaving the pool waits for its threads, so that nothing is still writing after this function.
    with ThreadPoolExecutor(PARALLEL) as pool, _shown(what, total) as show:
        pending: set[Future[None]] = {pool.submit(task, moved) for task in tasks}
        try:
            while pending:
                done, pending = wait(pending, timeout=_REFRESH_SECONDS, return_when=FIRST_EXCEPTION)
                show(moved.value)
                for future in done:
                    future.result()
        except BaseException:
            moved.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar of `total` bytes on stderr or in the notebook's cell; nothing if the output is a file."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if console.is_jupyter:
        yield _notebook_line(what, total)
        return
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    # Kept on the screen: a transient bar would disappear before anyone could read it.
    with Progress(TextColumn("{task.description}"), *columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def _notebook_line(what: str, total: int) -> Callable[[int], None]:
    """Show one line that is overwritten; rich's own bars need ipywidgets, which not every notebook server has."""
    from IPython.display import display  # type: ignore[import-not-found,unused-ignore]
    from rich.filesize import decimal

    def line(done: int) -> dict[str, str]:
        share = 100 * done // total if total else 100
        return {"text/plain": f"{what}: {decimal(done)} of {decimal(total)} ({share} %)"}

    cell = display(line(0), raw=True, display_id=True)
    return lambda done: cell.update(line(done), raw=True)

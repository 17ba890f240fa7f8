"""The line that sums up how the processes of an attempt started."""

from __future__ import annotations

import pytest

from mlplatform.client.starts import Start, describe


@pytest.mark.parametrize(
    ("starts", "line"),
    [
        ([], ""),
        ([Start("worker", None, 8), Start("driver", None, 1)], "driver warm, 8 workers warm"),
        (
            [Start("driver", "HF_HOME differs", 1), Start("worker", "off", 1), Start("worker", None, 7)],
            "driver cold (HF_HOME differs), 7 workers warm, 1 cold (off)",
        ),
        (
            [Start("driver", None, 2), Start("worker", "rare", 1), Start("worker", "frequent", 2)],
            "2 drivers warm, 2 workers cold (frequent), 1 cold (rare)",
        ),
        ([Start("worker", "off", 1)], "1 worker cold (off)"),
    ],
)
def test_starts_are_described_in_one_line(starts: list[Start], line: str) -> None:
    assert describe(starts) == line

"""Last lines of a log, as Ray's state API returns them."""

import pytest

from mlplatform_gateway.logs.api import last_lines


@pytest.mark.parametrize("text", ["", "one", "one\n", "one\ntwo", "one\ntwo\n", "\n\none\n\n", "a\rb\nc\n"])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 10])
def test_last_lines_are_those_of_the_whole_text(text: str, count: int) -> None:
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    whole = [line for line in lines if line]
    assert last_lines(text, count) == ("".join(whole[-count:]) if count else "")

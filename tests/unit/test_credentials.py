"""Ray's token in a file that may be rotated."""

import os
from pathlib import Path

import httpx
import pytest

from mlplatform.errors import SettingsError
from mlplatform.secrets.credentials import TokenFile


def test_rotated_token_applies_to_next_request(tmp_path: Path) -> None:
    path = tmp_path / "ray_token"
    path.write_text("first\n")
    token = TokenFile(path)
    assert token.sign(httpx.Request("GET", "http://gateway")).headers["Authorization"] == "Bearer first"

    path.write_text("")
    assert token.read() == "first", "an empty file, in the middle of a rotation, was read"
    path.write_text("other\n")
    os.utime(path, ns=(1, 1))
    assert token.read() == "other"
    (tmp_path / "new").write_text("third")
    (tmp_path / "new").rename(path)
    assert token.read() == "third"
    path.unlink()
    assert token.read() == "third"


@pytest.mark.parametrize("content", [None, "", "\n"])
def test_token_file_without_token_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "ray_token"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=f"RAY_AUTH_TOKEN_PATH='{path}'"):
        TokenFile(path).read()
    with pytest.raises(SettingsError, match=f"OTHER='{path}'"):
        TokenFile(path, "OTHER").read()

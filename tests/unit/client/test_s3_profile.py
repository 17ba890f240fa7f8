"""Profile of a person in the files of AWS clients: what is written, and what stays as it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from botocore.session import Session

from mlplatform.client import s3_profile
from mlplatform.client.s3_profile import Account, edited
from mlplatform.errors import SettingsError

FIRST = Account("a" * 20, "S" * 40, "http://127.0.0.1:9000", "us-east-1")
SECOND = Account("b" * 20, "T" * 40, "https://ml.example.org:9000", "us-east-1", Path("/etc/ssl/ours.pem"))

AMAZON = """\
# my own account
[default]
aws_access_key_id = AKIAIOSFODNN7EXAMPLE
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY

[work]
role_arn = arn:aws:iam::1:role/x
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def read(home: Path, name: str) -> str:
    return (home / ".aws" / name).read_text()


def place(home: Path, name: str, text: str) -> Path:
    file = home / ".aws" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def client_of(account: Account, profile: str | None = None) -> None:
    """Check that botocore's client of a profile has an account, without any argument."""
    session = Session(profile=profile)
    credentials = session.get_credentials()
    assert (credentials.access_key, credentials.secret_key) == (account.key, account.secret)
    assert session.get_scoped_config().get("ca_bundle") == (account.ca_bundle and str(account.ca_bundle))
    client = session.create_client("s3")
    assert (client.meta.endpoint_url, client.meta.region_name) == (account.endpoint_url, account.region)


def test_clients_use_the_account_without_any_setting(home: Path) -> None:
    assert s3_profile.write(FIRST) == "default"
    client_of(FIRST)
    modes = {stat.S_IMODE((home / ".aws" / name).stat().st_mode) for name in ("credentials", "config")}
    assert modes == {0o600}


def test_another_default_profile_stays_and_ours_has_a_name(home: Path) -> None:
    place(home, "credentials", AMAZON)
    assert s3_profile.write(FIRST) == "mlplatform"
    client_of(FIRST, "mlplatform")
    assert read(home, "credentials").startswith(AMAZON)
    assert "default" not in read(home, "config")


@pytest.mark.parametrize("section", ["default", "profile default"])
def test_default_profile_without_account_stays(home: Path, section: str) -> None:
    mine = f"[{section}]\nregion = eu-west-1\n"
    place(home, "config", mine)
    assert s3_profile.write(FIRST) == "mlplatform"
    client_of(FIRST, "mlplatform")
    assert read(home, "config").startswith(mine)


def test_address_without_account_is_used_again(home: Path) -> None:
    s3_profile.write(FIRST)
    (home / ".aws" / "credentials").unlink()
    assert s3_profile.write(FIRST) == "default"
    client_of(FIRST)


def test_next_log_in_replaces_the_account(home: Path) -> None:
    for mine in ("", AMAZON):
        place(home, "credentials", mine)
        place(home, "config", "")
        profile = s3_profile.write(FIRST)
        assert s3_profile.write(SECOND) == profile
        client_of(SECOND, profile)
        assert FIRST.key not in read(home, "credentials")
        assert s3_profile.write(FIRST) == profile
        assert "ca_bundle" not in read(home, "config")


def test_further_settings_of_the_profile_stay(home: Path) -> None:
    s3_profile.write(FIRST)
    mine = "output = json\ns3 =\n    region = kept\n    max_concurrent_requests = 5\n"
    place(home, "config", f"{read(home, 'config')}{mine}")
    assert s3_profile.write(SECOND) == "default"
    client_of(SECOND)
    assert read(home, "config").endswith(mine)
    s3_profile.remove(SECOND.key)
    assert read(home, "config") == f"[default]\n{mine}"


@pytest.mark.parametrize("mine", ["", AMAZON, AMAZON.replace("# my", "; my")])
def test_removal_leaves_what_was_there(home: Path, mine: str) -> None:
    file = place(home, "credentials", mine)
    s3_profile.write(FIRST)
    s3_profile.remove(FIRST.key)
    assert (file.read_text() if file.exists() else "") == mine
    assert not (home / ".aws" / "config").exists()


def test_removal_of_another_token_changes_nothing(home: Path) -> None:
    s3_profile.write(FIRST)
    before = read(home, "credentials"), read(home, "config")
    s3_profile.remove(SECOND.key)
    assert (read(home, "credentials"), read(home, "config")) == before


def test_profile_of_ours_with_another_account_stays(home: Path) -> None:
    mine = AMAZON.replace("[work]", "[mlplatform]")
    place(home, "credentials", mine)
    with pytest.raises(SettingsError, match=r"'mlplatform' in .* has another account"):
        s3_profile.write(FIRST)
    assert read(home, "credentials") == mine
    assert not (home / ".aws" / "config").exists()


def test_file_that_clients_cannot_read_stays(home: Path) -> None:
    place(home, "credentials", "mine")
    with pytest.raises(SettingsError, match="credentials cannot be read"):
        s3_profile.write(FIRST)
    assert read(home, "credentials") == "mine"


def test_link_stays_a_link(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles"
    target.write_text(AMAZON)
    (home / ".aws").mkdir()
    (home / ".aws" / "credentials").symlink_to(target)
    s3_profile.write(FIRST)
    assert (home / ".aws" / "credentials").is_symlink()
    assert FIRST.key in target.read_text()


def test_section_in_the_middle_is_edited_in_place() -> None:
    text = "[a]\nx = 1\n\n[ours]\nx = 2\n# note\ny = 3\n\n[b]\nx = 4\n"
    changed = edited(text, "ours", {"x": "5"})
    assert changed == "[a]\nx = 1\n\n[ours]\nx = 5\n# note\ny = 3\n\n[b]\nx = 4\n"
    assert edited(changed, "ours", {"x": None, "y": None}) == "[a]\nx = 1\n# note\n\n[b]\nx = 4\n"
    assert edited("[a]\nx = 1", "b", {"y": "2"}) == "[a]\nx = 1\n\n[b]\ny = 2\n"
    assert edited(text, "missing", {"x": None}) == text

"""Profile of a log-in in the file of AWS clients: what is written, and what stays as it is."""

import os
import shlex
import stat
from pathlib import Path

import pytest
from botocore.session import Session

from mlplatform.client import s3_profile
from mlplatform.client.s3_profile import COMMAND, edited
from mlplatform.errors import SettingsError
from mlplatform.settings.job import Settings

ENDPOINT, REGION = "http://127.0.0.1:9000", "us-east-1"
FILE = "auth_token"
BUNDLE = Path("/etc/ssl/ours.pem")

AMAZON = """\
# my own account
[default]
aws_access_key_id = AKIAIOSFODNN7EXAMPLE
aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY

[work]
role_arn = arn:aws:iam::1:role/x
"""

PROGRAM = """\
#!/bin/sh
echo '{"Version": 1, "AccessKeyId": "from the process", "SecretAccessKey": "s", "Expiration": "2100-01-01T00:00:00Z"}'
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


def write(home: Path, file: str = FILE, endpoint: str = ENDPOINT, ca_bundle: Path | None = None) -> str:
    """Write the profile of a log-in whose token is in a file of the home; return its name."""
    settings = Settings.load(ray_address="http://127.0.0.1:8265", ca_bundle=ca_bundle)
    return s3_profile.write(settings, home / file, endpoint, REGION)


def remove(home: Path, file: str = FILE) -> None:
    s3_profile.remove(home / file)


def uses_ours(home: Path, profile: str | None = None, file: str = FILE) -> None:
    """Check that botocore's client of a profile runs our command for a key, without any argument."""
    session = Session(profile=profile)
    config = session.get_scoped_config()
    words = shlex.split(config["credential_process"])
    assert words[:3] == ["env", "RAY_ADDRESS=http://127.0.0.1:8265", f"RAY_AUTH_TOKEN_PATH={home / file}"]
    assert (Path(words[-2]).name, words[-1]) == ("mlplatform", COMMAND)
    assert "aws_access_key_id" not in config
    program = home / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    replaced = read(home, "config").replace(words[-2], str(program))
    place(home, "config", replaced)
    client = Session(profile=profile).create_client("s3")
    assert client._get_credentials().access_key == "from the process"
    assert (client.meta.endpoint_url, client.meta.region_name) == (ENDPOINT, REGION)


def test_clients_run_the_command_without_any_setting(home: Path) -> None:
    assert write(home) == "default"
    assert stat.S_IMODE((home / ".aws" / "config").stat().st_mode) == 0o600
    uses_ours(home)


def test_paths_with_spaces_are_quoted(home: Path) -> None:
    write(home, "my token")
    uses_ours(home, file="my token")


def test_another_default_profile_stays_and_ours_has_a_name(home: Path) -> None:
    place(home, "credentials", AMAZON)
    assert write(home) == "mlplatform"
    assert "[default]" not in read(home, "config")
    uses_ours(home, "mlplatform")
    assert read(home, "credentials") == AMAZON


@pytest.mark.parametrize("section", ["default", "profile default"])
def test_default_profile_without_account_stays(home: Path, section: str) -> None:
    mine = f"[{section}]\nregion = eu-west-1\n"
    place(home, "config", mine)
    assert write(home) == "mlplatform"
    assert read(home, "config").startswith(mine)
    uses_ours(home, "mlplatform")


@pytest.mark.parametrize("mine", ["", AMAZON])
def test_next_log_in_replaces_the_profile(home: Path, mine: str) -> None:
    place(home, "credentials", mine)
    profile = write(home)
    assert write(home, "other_token", "https://ml.example.org:9000", BUNDLE) == profile
    config = read(home, "config")
    assert (f"ca_bundle = {BUNDLE}" in config, f"SSL_CERT_FILE={BUNDLE}" in config) == (True, True)
    assert (config.count("credential_process"), str(home / FILE) in config) == (1, False)
    assert write(home) == profile
    assert str(BUNDLE) not in read(home, "config")


def test_further_settings_of_the_profile_stay(home: Path) -> None:
    write(home)
    mine = "output = json\ns3 =\n    region = kept\n    max_concurrent_requests = 5\n"
    place(home, "config", f"{read(home, 'config')}{mine}")
    assert write(home, "other_token") == "default"
    assert read(home, "config").endswith(mine)
    remove(home, "other_token")
    assert read(home, "config") == f"[default]\n{mine}"


@pytest.mark.parametrize("mine", ["", "[profile work]\nregion = eu-west-1\n", "; note\n[profile a]\nx = 1\n"])
def test_removal_leaves_what_was_there(home: Path, mine: str) -> None:
    file = place(home, "config", mine)
    write(home)
    remove(home)
    assert (file.read_text() if file.exists() else "") == mine


def test_removal_for_another_token_changes_nothing(home: Path) -> None:
    write(home)
    before = read(home, "config")
    remove(home, "other_token")
    assert read(home, "config") == before


@pytest.mark.parametrize(
    ("name", "mine"),
    [
        ("credentials", AMAZON.replace("[work]", "[mlplatform]")),
        ("config", "[default]\nregion = a\n[profile mlplatform]\nregion = b\n"),
    ],
)
def test_profile_of_ours_with_another_account_stays(home: Path, name: str, mine: str) -> None:
    place(home, name, mine)
    with pytest.raises(SettingsError, match="'mlplatform' of AWS clients has another account"):
        write(home)
    assert read(home, name) == mine


def test_file_that_clients_cannot_read_stays(home: Path) -> None:
    place(home, "config", "mine")
    with pytest.raises(SettingsError, match="config cannot be read"):
        write(home)
    assert read(home, "config") == "mine"


def test_link_stays_a_link(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "dotfiles"
    target.write_text("[profile work]\nregion = eu-west-1\n")
    (home / ".aws").mkdir()
    (home / ".aws" / "config").symlink_to(target)
    write(home)
    assert (home / ".aws" / "config").is_symlink()
    assert COMMAND in target.read_text()


def test_section_in_the_middle_is_edited_in_place() -> None:
    text = "[a]\nx = 1\n\n[ours]\nx = 2\n# note\ny = 3\n\n[b]\nx = 4\n"
    changed = edited(text, "ours", {"x": "5"})
    assert changed == "[a]\nx = 1\n\n[ours]\nx = 5\n# note\ny = 3\n\n[b]\nx = 4\n"
    assert edited(changed, "ours", {"x": None, "y": None}) == "[a]\nx = 1\n# note\n\n[b]\nx = 4\n"
    assert edited("[a]\nx = 1", "b", {"y": "2"}) == "[a]\nx = 1\n\n[b]\ny = 2\n"
    assert edited(text, "missing", {"x": None}) == text

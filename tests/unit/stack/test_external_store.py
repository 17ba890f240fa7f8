"""Another S3 server instead of MinIO: its files of accounts, and what no longer belongs to the stack."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import yaml

from mlplatform.errors import SettingsError
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import backup, doctor, images, pages, secrets_folder, sizing
from mlplatform.stack import env as stack_env
from mlplatform.stack.host import Host

CHECKOUT = Path(__file__).parents[3]
ENDPOINT = "https://s3.example.org:7070"
ACCOUNT = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout with settings and secrets, for another S3 server."""
    shutil.copy(CHECKOUT / ".env.example", tmp_path)
    (tmp_path / "platform").mkdir()
    shutil.copy(CHECKOUT / "platform" / "pyproject.toml", tmp_path / "platform")
    stack_env.write_env(tmp_path, Host(memory=24 * sizing.GIB, cpus=8))
    env = tmp_path / ".env"
    env.write_text(env.read_text().replace("\nS3_ENDPOINT_URL=\n", f"\nS3_ENDPOINT_URL={ENDPOINT}\n"))
    return tmp_path


def load(root: Path, **values: str) -> StackSettings:
    return StackSettings.load(root / ".env", **values)


def test_account_must_be_filled_in_before_start(root: Path) -> None:
    (problem,) = doctor._account_problems(root, load(root))
    assert problem.startswith(f"secrets/external_s3 has no account for S3_ENDPOINT_URL={ENDPOINT}: write")
    (root / "secrets" / "external_s3").write_text(ACCOUNT)
    assert list(doctor._account_problems(root, load(root))) == []


def test_separate_accounts_need_a_file_each(root: Path) -> None:
    (root / "secrets" / "external_s3").write_text(ACCOUNT)
    separate = load(root, s3_separate_accounts="1")
    names = [f"external_s3_{name}" for name in secrets_folder.S3_ACCOUNTS]
    assert secrets_folder.without_account(root / "secrets", separate) == names
    for name in names:
        (root / "secrets" / name).write_text(ACCOUNT)
    assert secrets_folder.without_account(root / "secrets", separate) == []


@pytest.mark.parametrize("separate", ["", "1"])
def test_compose_mounts_files_that_clients_use(root: Path, separate: str) -> None:
    settings = load(root, s3_separate_accounts=separate)
    text = (CHECKOUT / "compose/store.external.yaml").read_text()
    text = re.sub(r"\$\{S3_SEPARATE_ACCOUNTS:\+(\w+)\}", r"\1" if separate else "", text)
    mounted = {name: Path(secret["file"]).name for name, secret in yaml.safe_load(text)["secrets"].items()}
    del mounted["external_s3"]
    accounts = {f"minio_{name}": secrets_folder.s3_file(settings, name) for name in secrets_folder.S3_ACCOUNTS}
    assert mounted == {**accounts, "minio_node": secrets_folder.s3_file(settings, "job")}
    ours = yaml.safe_load((CHECKOUT / "compose/store.yaml").read_text())["secrets"]
    assert mounted.keys() <= ours.keys()


def test_every_service_uses_the_chosen_server() -> None:
    lines = [line for path in (CHECKOUT / "compose").rglob("*.yaml") for line in path.read_text().splitlines()]
    addresses = [line.strip() for line in lines if re.search(r"ENDPOINT_URL: ", line)]
    assert len(addresses) >= 5
    assert not [line for line in addresses if not line.endswith("${S3_ENDPOINT_URL:-http://minio:9000}")]


def test_client_uses_other_server_and_its_account(root: Path) -> None:
    client = stack_env.client_settings(root)
    assert (client.s3_endpoint, client.s3_credentials) == (ENDPOINT, root / "secrets" / "external_s3")


def test_minio_is_neither_required_nor_shown(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "is_present", lambda image: False)
    assert not [name for name in images.missing_builds(load(root), ["ray"]) if "minio" in name]
    assert not [page for page in pages.pages(load(root)) if page.service == "minio"]


@pytest.mark.parametrize("address", ["http://localhost:9000", "http://127.0.0.1", "s3.example.org", "https://u:p@s3"])
def test_unusable_address_is_rejected(root: Path, address: str) -> None:
    with pytest.raises(SettingsError, match="S3_ENDPOINT_URL"):
        load(root, s3_endpoint=address)


def test_restore_keeps_server_of_this_host(root: Path) -> None:
    saved = "S3_ENDPOINT_URL=https://s3.elsewhere.org\nS3_SEPARATE_ACCOUNTS=1\nVERSION_DAYS=3\n"
    merged = backup.merged((root / ".env").read_text(), saved)
    assert f"\nS3_ENDPOINT_URL={ENDPOINT}\n" in merged
    assert "\nS3_SEPARATE_ACCOUNTS=\n" in merged
    assert "\nVERSION_DAYS=3\n" in merged

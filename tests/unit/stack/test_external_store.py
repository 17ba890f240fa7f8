"""Another S3 server instead of MinIO: its files of accounts, and what no longer belongs to the stack."""

import re
from pathlib import Path

import pytest
import yaml

from mlplatform.errors import SettingsError
from mlplatform_stack import env as stack_env
from mlplatform_stack import env_file, secrets_folder, services, sizing
from mlplatform_stack.host import Host
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]
ENDPOINT = "https://s3.example.org:7070"
ACCOUNT = "[default]\naws_access_key_id = key\naws_secret_access_key = secret\n"


@pytest.fixture
def root(root: Path) -> Path:
    """A checkout with settings and secrets, for another S3 server."""
    stack_env.write_env(root, Host(memory=24 * sizing.GIB, cpus=8))
    env_file.change(root / ".env", {"S3_ENDPOINT_URL": ENDPOINT})
    return root


def load(root: Path, **values: str) -> StackSettings:
    return StackSettings.load(root / ".env", **values)


def test_account_must_be_filled_in_before_start(root: Path) -> None:
    def problems() -> list[str]:
        return list(secrets_folder.account_problems(root / "secrets", load(root)))

    (problem,) = problems()
    assert problem.startswith("secrets/s3_owner has no account at the S3 server: write aws_access_key_id")
    names = [f"s3_{role}" for role in ("owner", *secrets_folder.S3_ROLES)]
    (root / "secrets/s3_owner").write_text(ACCOUNT)
    assert problems() == []
    for text in ("# not filled in\n", "no section", ACCOUNT.replace("secret\n", "\n")):
        for name in names:
            (root / "secrets" / name).unlink()
            (root / "secrets" / name).write_text(text)
        assert [found.partition(" has no account")[0] for found in problems()] == [f"secrets/{name}" for name in names]
    (root / "secrets/s3_owner").unlink()
    assert problems()[0].endswith("run `make env` to generate missing secrets.")


def test_roles_use_the_same_files_with_either_server() -> None:
    compose = {
        path.name: yaml.safe_load(path.read_text()).get("secrets") or {}
        for path in (CHECKOUT / "compose").glob("*.yaml")
    }
    roles = {f"s3_{role}" for role in secrets_folder.S3_ROLES}
    assert roles <= compose["storage.yaml"].keys()
    assert compose["store.external.yaml"].keys() == {"s3_owner"}
    assert {name for name in compose["store.yaml"] if name.startswith("s3_")} == set()


def test_every_service_uses_the_chosen_server() -> None:
    lines = [line for path in (CHECKOUT / "compose").rglob("*.yaml") for line in path.read_text().splitlines()]
    addresses = [line.strip() for line in lines if re.search(r"ENDPOINT_URL: ", line)]
    assert len(addresses) >= 5
    assert not [line for line in addresses if not line.endswith("${S3_ENDPOINT_URL:-http://minio:9000}")]


def test_clients_and_pages_are_those_of_other_server(root: Path) -> None:
    client = stack_env.client_settings(root)
    assert (client.s3_endpoint, client.s3_credentials) == (ENDPOINT, root / "secrets" / "s3_people")
    assert not [page for page in services.pages(root) if page.service == services.STORE]


@pytest.mark.parametrize("address", ["http://localhost:9000", "http://127.0.0.1", "s3.example.org", "https://u:p@s3"])
def test_unusable_address_is_rejected(root: Path, address: str) -> None:
    with pytest.raises(SettingsError, match="S3_ENDPOINT_URL"):
        load(root, s3_endpoint_url=address)

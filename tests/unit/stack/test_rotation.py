"""Files of `make rotate`; `tests/stack/test_rotation.py` has the whole command on a running stack."""

import fcntl
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from compose_files import checkout

from mlplatform.errors import HostError, SettingsError
from mlplatform_stack import declared, rotation, secrets_folder, unfinished
from mlplatform_stack.backup import verbs as backup
from mlplatform_stack.rotation import NOT_ROTATED, chosen, generate, install, readers
from mlplatform_stack.secrets_folder import FILES

CHECKOUT = Path(__file__).parents[3]

ROTATED = set(FILES) - set(NOT_ROTATED)


@cache
def config() -> dict[str, Any]:
    """Secrets of the compose files, as `docker compose config` shows them; with the stack's own store."""
    with tempfile.TemporaryDirectory() as name:
        found = declared.services(checkout(Path(name)))
    services = {
        name: {"secrets": [{"source": each} if isinstance(each, str) else each for each in service.get("secrets", [])]}
        for name, service in found.items()
    }
    secrets = {name: {"file": f"../secrets/{name}"} for name in declared.secrets(CHECKOUT)}
    return {"services": services, "secrets": secrets}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The secrets of a checkout."""
    (tmp_path / ".env").write_text("MLPLATFORM_VERSION=0.4.0\n")
    secrets_folder.write_missing(tmp_path / "secrets")
    return tmp_path / "secrets"


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_only_chooses_by_first_word() -> None:
    assert chosen("") == (ROTATED, True)
    assert set(NOT_ROTATED) <= set(FILES)
    names, certificates = chosen("prometheus, ray,")
    assert names == {"prometheus_password", "prometheus_web", "ray_token"}
    assert not certificates
    assert chosen("certificates") == (set(), True)


@pytest.mark.parametrize("only", ["store,x", "wandb", "backup", "all"])
def test_unknown_name_is_rejected(only: str) -> None:
    with pytest.raises(SettingsError, match="use some of certificates, postgres, store, s3, mlflow"):
        chosen(only)


@pytest.mark.parametrize(
    ("only", "restarted"),
    [
        ("grafana", "grafana"),
        ("notebook", "notebook"),
        ("gateway", "gateway"),
        ("prometheus", "gateway grafana prometheus"),
        ("ray", "gateway notebook"),
        ("metrics", "alertmanager mlflow-migrate postgres-exporter prometheus"),
        ("log", "gateway log-shipper"),
    ],
)
def test_services_that_mount_a_changed_secret_are_found(only: str, restarted: str) -> None:
    assert " ".join(readers(config(), chosen(only)[0])) == restarted


def test_secret_is_found_under_the_name_of_its_file() -> None:
    external = {
        "services": {"ray-head": {"secrets": [{"source": "mounted", "target": "credentials"}]}, "postgres": {}},
        "secrets": {"mounted": {"file": "/srv/secrets/s3_jobs"}},
    }
    assert readers(external, {"s3_jobs", "ray_token"}) == ["ray-head"]
    assert readers(external, {"mounted"}) == []


def test_every_rotated_secret_is_mounted_by_a_service() -> None:
    assert [name for name in sorted(ROTATED) if not readers(config(), {name})] == []


def test_new_secrets_replace_all_present_ones(folder: Path) -> None:
    before = contents(folder)
    generate(folder / "next", chosen("")[0])
    assert contents(folder) == before
    # Services of other users read it, and only its owner passes through the folder around it.
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "next")] == [0o700, 0o755]
    new = contents(folder / "next")
    install(folder / "next")
    after = contents(folder)
    assert {name for name in FILES if after[name] == before[name]} == set(NOT_ROTATED)
    assert {name: after[name] for name in new} == new
    assert {(folder / name).stat().st_mode & 0o777 for name in new} == {0o444}
    install(folder / "next")
    assert contents(folder) == after, "a repetition changed something"


@pytest.mark.parametrize("only", ["", "prometheus,metrics"])
def test_derived_files_match_their_sources(folder: Path, only: str) -> None:
    generate(folder / "next", chosen(only)[0])
    for source, web in (("metrics_password", "metrics_web"), ("prometheus_password", "prometheus_web")):
        hashed = (folder / "next" / web).read_text().split("prometheus: ")[1].strip()
        assert bcrypt.checkpw((folder / "next" / source).read_bytes(), hashed.encode())


def test_interrupted_generation_leaves_no_rotation(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = contents(folder), FILES["mlflow_admin"]

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(FILES, "mlflow_admin", killed)
    with pytest.raises(KeyboardInterrupt):
        generate(folder / "next", ROTATED)
    assert not unfinished.has(folder.parent, "rotate")
    assert contents(folder) == before
    monkeypatch.setitem(FILES, "mlflow_admin", write)
    generate(folder / "next", ROTATED)
    assert set(contents(folder / "next")) == ROTATED


def test_repeated_command_continues_with_the_same_secrets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate(folder / "next", ROTATED)
    new = contents(folder / "next")
    monkeypatch.setenv("PATH", "/nowhere")
    lines = rotation.rotate(folder.parent, "grafana")
    assert next(lines) == "completing the rotation that was interrupted"
    with pytest.raises(FileNotFoundError, match="docker"):
        next(lines)
    assert contents(folder / "next") == new


@pytest.mark.parametrize(("external", "begins"), [("", True), ("https://s3.example.org", False)])
def test_accounts_at_another_s3_server_are_its_operators(
    folder: Path, monkeypatch: pytest.MonkeyPatch, external: str, begins: bool
) -> None:
    monkeypatch.setenv("S3_ENDPOINT_URL", external)
    monkeypatch.setattr(rotation, "running", lambda _: {"postgres"})
    lines = rotation.rotate(folder.parent, "s3")
    if begins:
        assert next(lines) == "generated 5 new secrets"
        lines.close()
        assert set(contents(folder / "next")) == {f"s3_{role}" for role in secrets_folder.S3_ROLES}
    else:
        with pytest.raises(HostError, match="the operator of another S3 server changes its accounts"):
            next(lines)
        assert not unfinished.has(folder.parent, "rotate")


def test_restore_keeps_what_databases_and_object_store_accept(folder: Path, tmp_path: Path) -> None:
    before = contents(folder)
    (tmp_path / "handover").mkdir()
    secrets_folder.write_missing(tmp_path / "handover/secrets")
    list(backup._adopt(folder.parent, tmp_path / "handover"))
    kept = {name for name, content in contents(folder).items() if content == before[name]}
    roles = {f"s3_{role}" for role in ("owner", *secrets_folder.S3_ROLES)}
    assert {"postgres_password", "store_root_password", "backup_password", *roles} <= kept
    assert not {"mlflow_job", "mlflow_key", "cluster_token", "gateway_secrets_key"} & kept


def test_second_rotation_waits_for_first(folder: Path) -> None:
    generate(folder / "next", {"ray_token"})
    lines = rotation.rotate(folder.parent)
    next(lines)
    lock = os.open(folder, os.O_RDONLY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lines.close()
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(lock)

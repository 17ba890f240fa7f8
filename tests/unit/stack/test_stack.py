"""The stack's files on a host: `.env`, secrets, workers for any number of GPUs, and the checks before starting."""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from compose_files import services_of

from mlplatform import credentials
from mlplatform.errors import HostError, SettingsError
from mlplatform.services import store
from mlplatform.settings.stack import StackSettings
from mlplatform.stack import compose, doctor, images, secrets_folder, services, sizing, workers
from mlplatform.stack import env as stack_env
from mlplatform.stack.host import Host

CHECKOUT = Path(__file__).parents[3]
HOST = Host(memory=24 * sizing.GIB, cpus=8)


def test_env_and_secrets_are_written_once(root: Path) -> None:
    assert stack_env.write_env(root, HOST)
    before = {path: path.read_bytes() for path in [root / ".env", *(root / "secrets").iterdir()]}
    assert len(before) == 1 + len(secrets_folder.FILES)
    assert stack_env.write_env(root, HOST) == []
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("account", "name"), [("ada.l", "ada.l"), ("CORP\\ada", ""), ("a$da", "")])
def test_env_names_person_who_runs_it(root: Path, account: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", account)
    lines = [line for line in stack_env.write_env(root, HOST) if "NOTEBOOK_USER" in line]
    assert [line.split(":")[0].strip() for line in lines] == ([f"NOTEBOOK_USER={name}"] if name else [])
    assert f"\nNOTEBOOK_USER={name}\n" in (root / ".env").read_text()


def test_outdated_version_in_env_is_replaced(root: Path) -> None:
    stack_env.write_env(root, HOST)
    version = stack_env.checkout_version(root)
    assert StackSettings.load(root / ".env").mlplatform_version == version
    text = (root / ".env").read_text()
    (root / ".env").write_text(text.replace(f"MLPLATFORM_VERSION={version}", "MLPLATFORM_VERSION=0.1.0"))
    assert stack_env.write_env(root, HOST) == [f"MLPLATFORM_VERSION={version} into .env, which had 0.1.0"]
    assert (root / ".env").read_text() == text


def test_empty_setting_in_env_gets_its_default(root: Path) -> None:
    stack_env.write_env(root, HOST)
    with (root / ".env").open("a") as env:
        env.write("RAY_PORT=\nDOMAIN=\n")
    assert stack_env.write_env(root, HOST) == ["RAY_PORT=8265 into .env, where it was empty"]
    assert "\nRAY_PORT=\n" not in (root / ".env").read_text()


def test_start_passes_gateway_lines_that_it_reads(root: Path, program: Callable[[str, str], Path]) -> None:
    stack_env.write_env(root, HOST)
    with (root / ".env").open("a") as env:
        env.write("GRACE_SECONDS='30'\nAWS_ACCESS_KEY_ID=foreign\n")
    program("docker", """case "$*" in *" config --format json") echo '{"services": {}}' ;; esac""")
    compose.up(root)
    passed = (root / "compose/gateway.generated.env").read_text()
    assert "\nGRACE_SECONDS=120\n" in passed
    assert passed.endswith("GRACE_SECONDS='30'\n")
    assert "WORKER_MEMORY" not in passed
    assert "foreign" not in passed


def test_only_missing_or_empty_secrets_are_regenerated(root: Path) -> None:
    stack_env.write_env(root, HOST)
    kept = (root / "secrets/ray_token").read_text()
    (root / "secrets/grafana_password").unlink()
    (root / "secrets/store_root_password").chmod(0o644)
    (root / "secrets/store_root_password").write_text("")
    assert stack_env.write_env(root, HOST) == ["secrets/store_root_password", "secrets/grafana_password"]
    assert len((root / "secrets/store_root_password").read_text()) >= 32
    assert (root / "secrets/ray_token").read_text() == kept


def test_secrets_are_readable_by_services_and_closed_to_others(root: Path) -> None:
    stack_env.write_env(root, HOST)
    assert stat.S_IMODE((root / "secrets").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (root / "secrets").iterdir()}
    assert modes == {name: 0o644 if name in secrets_folder.TO_FILL_IN else 0o444 for name in secrets_folder.FILES}


def test_two_hosts_never_share_secrets(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        secrets_folder.write_missing(tmp_path / name / "secrets")
    for name in secrets_folder.FILES.keys() - secrets_folder.TO_FILL_IN:
        assert (tmp_path / "one/secrets" / name).read_text() != (tmp_path / "two/secrets" / name).read_text(), name


def test_accounts_read_back_as_written(tmp_path: Path) -> None:
    credentials.mlflow_account("job", tmp_path / "mlflow")
    credentials.s3_account("job", tmp_path / "s3")
    credentials.postgres_service("mlflow", tmp_path / "postgres")
    for user, secret in (
        credentials.read_mlflow_account(tmp_path / "mlflow"),
        credentials.read_s3_account(tmp_path / "s3"),
        credentials.read_postgres_service(tmp_path / "postgres"),
    ):
        assert user in ("job", "mlflow")
        assert len(secret) >= 32


def test_metrics_token_is_signed_with_accounts_key(tmp_path: Path) -> None:
    (tmp_path / "root").write_text(credentials.password())
    store.metrics_token(tmp_path / "root", tmp_path / "token")
    signed, signature = (tmp_path / "token").read_text().rsplit(".", 1)
    user, key = store.metrics_account((tmp_path / "root").read_text())
    expected = hmac.new(key.encode(), signed.encode(), hashlib.sha512).digest()
    assert base64.urlsafe_b64encode(expected).rstrip(b"=").decode() == signature
    claims = json.loads(base64.urlsafe_b64decode(signed.split(".")[1] + "=="))
    assert claims["sub"] == user == "prometheus"
    assert len(key) == 32
    assert store.metrics_account(credentials.password())[1] != key


def test_prometheus_sends_headers_that_keep_it_out_of_frames(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct")
    credentials.prometheus_web(tmp_path / "password", tmp_path / "web")
    headers = yaml.safe_load((tmp_path / "web").read_text())["http_server_config"]["headers"]
    # Prometheus refuses to start with other names than these three and two, and with `DENY`.
    assert headers.keys() <= {
        *("Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options"),
        *("Strict-Transport-Security", "X-XSS-Protection"),
    }
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == ("nosniff", "deny")


@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "rocm"])
def test_generated_workers_equal_shipped_layout(accelerator: str) -> None:
    shipped = yaml.safe_load((CHECKOUT / f"compose/workers.{accelerator}.gpu.yaml").read_text())
    assert yaml.safe_load(workers.render_workers(accelerator, 2)) == shipped
    assert (
        len(yaml.safe_load(workers.render_workers(accelerator, 5))["services"]) == 7
    )  # with log shipper and ownership


def test_generated_layout_is_written_for_host(root: Path) -> None:
    stack_env.write_env(root, HOST)
    env = (root / ".env").read_text().replace("WORKER_LAYOUT=gpu", "WORKER_LAYOUT=generated")
    (root / ".env").write_text(env)
    assert stack_env.write_env(root, HOST)[:2] == [
        "compose/workers.cpu.generated.yaml",
        "the sizes of 1 worker into .env:",
    ]


def test_every_setting_is_documented_in_env_example() -> None:
    text = (CHECKOUT / ".env.example").read_text()
    explained = {line.split("=")[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert explained == StackSettings.variables()
    in_compose = set()
    for path in (CHECKOUT / "compose").glob("*.yaml"):
        in_compose |= set(re.findall(r"\$\{(\w+)", path.read_text()))
    in_lock = set(re.findall(r"^(\w+_DIGEST)=", (CHECKOUT / "compose/images.lock").read_text(), re.MULTILINE))
    # `make up` passes them; users do not set them.
    passed = {
        *("TRACKING_ADDRESS", "JOBS_ADDRESS", "PAGES_ORIGIN", "MLFLOW_ORIGIN", "PROMETHEUS_ORIGIN"),
        *("BACKUP_FOLDER", "SETTINGS_DIGEST", "ALERTS_DIGEST", "HOST_NAME"),
    }
    # Programs of every kind read them, so we do not declare them; a comment explains them.
    assert "HTTP_PROXY, HTTPS_PROXY and NO_PROXY" in text
    passed |= {"NO_PROXY", "no_proxy"}
    assert in_compose - in_lock - passed <= explained


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ACCELERATOR=tpu", "ACCELERATOR='tpu'.*'cpu', 'cuda' or 'rocm'"),
        ("WORKER_LAYOUT=node", "WORKER_LAYOUT='node'.*'host', 'gpu' or 'generated'"),
        ("BIND_ADDRESS=0.0.0.0", "BIND_ADDRESS='0.0.0.0'.*loopback only.*proxy.*ssh -L"),
        ("BIND_ADDRESS=192.0.2.7", "BIND_ADDRESS='192.0.2.7'.*loopback only.*proxy.*ssh -L"),
        ("COMPOSE_PROFILES=proxy", "BIND_ADDRESS='127.0.0.1'.*same ports on 127.0.0.1; use 127.0.0.2"),
        ("COMPOSE_PROFILES=proxy\nBIND_ADDRESS=0.0.0.0", "BIND_ADDRESS='0.0.0.0'.*one IPv4 address of this host"),
        ("COMPOSE_PROFILES=proxy\nBIND_ADDRESS=gpu-host", "BIND_ADDRESS='gpu-host'.*one IPv4 address of this host"),
        ("DOMAIN=https://ml.example.org", "DOMAIN='https://ml.example.org'"),
        ("ACME_EMAIL=ops@example.org", "ACME_EMAIL='ops@example.org'.*set DOMAIN"),
        ("BUCKET_QUOTAS=rays=5g", "BUCKET_QUOTAS='rays=5g'.*'rays=5g' is not a quota.*mlflow-artifacts, ray"),
        ("BUCKET_QUOTAS=ray=lots", "write BUCKET=SIZE, as in ray=500g"),
        ("MLFLOW_PORT=70000", "MLFLOW_PORT='70000'.*65535"),
        ("STACK_PREFIX=Ä", "STACK_PREFIX='Ä'"),
    ],
)
def test_invalid_setting_error_names_variable_value_and_fix(root: Path, line: str, expected: str) -> None:
    stack_env.write_env(root, HOST)
    with (root / ".env").open("a") as env:
        env.write(line + "\n")
    with pytest.raises(SettingsError, match=expected):
        StackSettings.load(root / ".env")


def test_missing_env_file_error_names_command(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"There is no .*\.env; run `make env`"):
        StackSettings.load(tmp_path / ".env")


def test_only_starts_one_half_of_stack(root: Path) -> None:
    stack_env.write_env(root, HOST)
    settings = StackSettings.load(root / ".env")
    tracking, ray = (services.start_variables(settings, half) for half in ("tracking", "ray"))
    assert "ray" not in tracking["COMPOSE_PROFILES"].split(",")
    assert tracking["JOBS_ADDRESS"] == ""
    assert "tracking" not in ray["COMPOSE_PROFILES"].split(",")
    assert ray["TRACKING_ADDRESS"] == ""
    with pytest.raises(SettingsError, match="ONLY=grafana is unknown; use one of tracking, ray"):
        services.start_variables(settings, "grafana")


def test_ssh_command_forwards_every_page(root: Path) -> None:
    stack_env.write_env(root, HOST)
    pages = services.pages(StackSettings.load(root / ".env"))
    line = services.ssh_line(pages, "ana@gpu-host")
    assert line.endswith(" ana@gpu-host")
    assert all(f"-L {page.port}:127.0.0.1:{page.port}" in line for page in pages)


def test_full_disk_error_names_needed_space(tmp_path: Path) -> None:
    (problem,) = doctor._disk_problems(tmp_path / "not" / "visible", 10**6)
    assert "DISK_NEEDED_GB=1000000" in problem
    assert list(doctor._disk_problems(tmp_path, 0)) == []


def test_network_of_another_stack_is_reported(root: Path) -> None:
    stack_env.write_env(root, HOST)
    settings = StackSettings.load(root / ".env")
    mine, other, office = (ipaddress.ip_network(text) for text in ("10.213.76.0/24", "10.213.0.0/16", "172.17.0.0/16"))
    assert list(doctor._network_problems(settings, {"mlplatform_cluster": [mine], "bridge": [office]})) == []
    (problem,) = doctor._network_problems(settings, {"vpn": [office, other]})
    assert "CLUSTER_NETWORK=10.213.76 overlaps with Docker's network vpn" in problem


@pytest.mark.parametrize("page", services.PAGES, ids=lambda page: page.setting)
def test_page_is_published_by_its_service_on_loopback(page: services.Page) -> None:
    found = services_of("*.yaml")[page.service]
    assert any(port.startswith(f"127.0.0.1:${{{page.setting}}}:") for port in found["ports"])
    assert len(found["ports"]) == len([other for other in services.PAGES if other.service == page.service])


def test_front_page_links_to_every_published_page() -> None:
    gateway = yaml.safe_load((CHECKOUT / "compose/gateway.yaml").read_text())["services"]["gateway"]
    text = re.sub(r"\$\{(\w+)\}", r'"\1"', gateway["environment"]["MLPLATFORM_GATEWAY_TOOLS"])
    text = re.sub(r"\$\{S3_ENDPOINT_URL:\+\w+\}", "", text)  # MinIO is left out if another server replaces it
    linked = {(tool["profile"] or None, tool["port"]) for tool in json.loads(text)}
    # The dashboard has the gateway's own address, and S3 has no page.
    others = ("RAY_PORT", "S3_PORT")
    profiles = {name: (service.get("profiles") or [None])[0] for name, service in services_of("*.yaml").items()}
    published = {(profiles[page.service], page.setting) for page in services.PAGES if page.setting not in others}
    assert linked == published


def test_every_published_port_is_a_page() -> None:
    publishing = {name for name, service in services_of("*.yaml").items() if service.get("ports")}
    # UDP, and the ports of pages at another address.
    assert publishing - {"hub", "proxy"} == {page.service for page in services.PAGES}


def test_jobs_share_no_network_with_services_without_login() -> None:
    names = ("alertmanager", "postgres-exporter", "dcgm-exporter", "amd-exporter", "postgres")
    assert not [name for name in names if "cluster" in services_of("*.yaml")[name]["networks"]]


def test_only_what_jobs_or_prometheus_need_shares_network_of_ray() -> None:
    texts = {path: yaml.safe_load(path.read_text()) for path in (CHECKOUT / "compose").glob("*.yaml")}
    services_of_ray = {
        name
        for content in texts.values()
        for name, service in (content.get("services") or {}).items()
        if "cluster" in service.get("networks", ())
    }
    of_ray, used_by_jobs, of_hosts = {"ray-head", "worker"}, {"gateway", "minio", "mlflow"}, {"hub", "copies"}
    # Prometheus reads the nodes' metrics, and notebooks are clients of Ray.
    assert services_of_ray == of_ray | used_by_jobs | of_hosts | {"prometheus", "notebook"}


def test_compose_secrets_equal_generated_secrets() -> None:
    text = "".join(path.read_text() for path in (CHECKOUT / "compose").glob("*.yaml"))
    assert {*re.findall(r"file: \.\./secrets/([\w.]+)", text)} == set(secrets_folder.FILES)


def test_table_has_every_setting_of_an_image() -> None:
    images = {name: str(service.get("image")) for name, service in services_of("*.yaml").items()}
    named = {name: re.findall(r"\$\{(\w+_IMAGE):-", image) for name, image in images.items() if "_IMAGE:-" in image}
    assert named == {name: [setting] for name, setting in services.IMAGE_SETTINGS.items()}


@pytest.mark.parametrize("only", ["", "tracking"])
def test_only_images_of_started_services_are_required(
    root: Path, program: Callable[[str, str], Path], only: str
) -> None:
    stack_env.write_env(root, HOST)
    found = {"postgres": {"image": "postgres:17"}, "ray-head": {"image": "mlplatform-ray:1"}}
    found |= {name: {"image": f"mlplatform-{name}:1"} for name in ("minio", "platform")}
    script = f"""case "$*" in
  *"image inspect "*mlplatform-platform:1) echo sha256:1 ;;
  *" config "*) echo "$COMPOSE_PROFILES" >{root}/profiles; echo '{json.dumps({"services": found})}' ;;
esac"""
    program("docker", script)
    assert images.missing_builds(images.configured(root, only)) == ["mlplatform-minio:1", "mlplatform-ray:1"]
    assert ("ray" in (root / "profiles").read_text().strip().split(",")) == (not only)


def test_unpullable_image_error_names_setting_and_workaround() -> None:
    profiles = ["tracking", "grafana"]
    grafana = {"image": "grafana/grafana:12.4", "profiles": ["grafana"]}
    problem = images._problem("grafana", grafana, "a\nno such host\n", profiles)
    assert problem == (
        "The image grafana/grafana:12.4 of the service grafana cannot be pulled (no such host): set GRAFANA_IMAGE in "
        ".env to one that this host reaches, or leave the service out with COMPOSE_PROFILES=tracking."
    )
    problem = images._problem("postgres", {"image": "postgres:17"}, "no such host", profiles)
    assert problem.endswith("set POSTGRES_IMAGE in .env to one that this host reaches.")


def test_start_with_backup_target_adds_timer(root: Path, tmp_path: Path) -> None:
    stack_env.write_env(root, HOST)
    settings = StackSettings.load(root / ".env")
    assert "backup-timer" not in services.profiles_of(settings)
    assert compose.timer_variables(root, settings) == {}

    folder = tmp_path / "disk" / "backups"
    with (root / ".env").open("a") as env:
        env.write(f"BACKUP_TO={folder}\n")
    settings = StackSettings.load(root / ".env")
    assert all(services.profiles_of(settings, only).count("backup-timer") == 1 for only in ("", "tracking", "ray"))
    found = compose.timer_variables(root, settings)
    assert found["BACKUP_FOLDER"] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with (root / ".env").open("a") as env:
        env.write("BACKUP_TO=s3:https://s3.example.org/bucket\n")
    of_server = compose.timer_variables(root, StackSettings.load(root / ".env"))
    assert of_server.keys() == {"SETTINGS_DIGEST"}
    assert of_server["SETTINGS_DIGEST"] != found["SETTINGS_DIGEST"], "the timer would keep the former settings"


def test_impossible_backup_folder_error_names_setting(root: Path) -> None:
    stack_env.write_env(root, HOST)
    with (root / ".env").open("a") as env:
        env.write("BACKUP_TO=.env/backups\n")
    with pytest.raises(HostError, match=r"The folder .*/backups .* cannot be made \(.*BACKUP_TO in \.env"):
        compose.timer_variables(root, StackSettings.load(root / ".env"))

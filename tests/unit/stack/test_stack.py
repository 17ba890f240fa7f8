"""The stack's files on a host: `.env`, secrets, workers for any number of GPUs, and the checks before starting."""

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
from compose_files import checkout

from mlplatform.errors import HostError, SettingsError
from mlplatform.secrets import credentials
from mlplatform_stack import compose, declared, generated, images, preflight, secrets_folder, services, sizing
from mlplatform_stack import credential_files as formats
from mlplatform_stack import env as stack_env
from mlplatform_stack.bootstrap import minio as store
from mlplatform_stack.checks import start
from mlplatform_stack.checks.finding import Place
from mlplatform_stack.host import Host
from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]
HOST = Host(memory=24 * sizing.GIB, cpus=8)


def append(root: Path, lines: str) -> None:
    """Add lines to the settings of a checkout."""
    with (root / ".env").open("a") as file:
        file.write(lines)


def loaded(root: Path) -> StackSettings:
    return StackSettings.load(root / ".env")


@pytest.fixture
def ready(root: Path) -> Path:
    """A checkout with settings and secrets for the host."""
    stack_env.write_env(root, HOST)
    return root


def test_env_and_secrets_are_written_once(root: Path) -> None:
    assert stack_env.write_env(root, HOST)
    before = {path: path.read_bytes() for path in [root / ".env", *(root / "secrets").iterdir()]}
    assert len(before) == 1 + len(secrets_folder.names(root))
    assert stack_env.write_env(root, HOST) == []
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(("account", "name"), [("ada.l", "ada.l"), ("CORP\\ada", ""), ("a$da", "")])
def test_env_names_person_who_runs_it(root: Path, account: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", account)
    lines = [line for line in stack_env.write_env(root, HOST) if "NOTEBOOK_USER" in line]
    assert [line.split(":")[0].strip() for line in lines] == ([f"NOTEBOOK_USER={name}"] if name else [])
    assert f"\nNOTEBOOK_USER={name}\n" in (root / ".env").read_text()


def test_outdated_version_in_env_is_replaced(ready: Path) -> None:
    version = stack_env.checkout_version(ready)
    assert loaded(ready).mlplatform_version == version
    text = (ready / ".env").read_text()
    (ready / ".env").write_text(text.replace(f"MLPLATFORM_VERSION={version}", "MLPLATFORM_VERSION=0.1.0"))
    assert stack_env.write_env(ready, HOST) == [f"MLPLATFORM_VERSION={version} into .env, which had 0.1.0"]
    assert (ready / ".env").read_text() == text


def test_empty_setting_in_env_gets_its_default(ready: Path) -> None:
    append(ready, "RAY_PORT=\nDOMAIN=\n")
    assert stack_env.write_env(ready, HOST) == ["RAY_PORT=8265 into .env, where it was empty"]
    assert "\nRAY_PORT=\n" not in (ready / ".env").read_text()


def test_start_passes_gateway_lines_that_it_reads(ready: Path, program: Callable[[str, str], Path]) -> None:
    append(ready, "GRACE_SECONDS='30'\nAWS_ACCESS_KEY_ID=foreign\n")
    program("docker", """case "$*" in *" config --format json") echo '{"services": {}}' ;; esac""")
    compose.up(ready)
    passed = (ready / "compose/gateway.generated.env").read_text()
    assert "\nGRACE_SECONDS=120\n" in passed
    assert passed.endswith("GRACE_SECONDS='30'\n")
    assert "WORKER_MEMORY" not in passed
    assert "foreign" not in passed


def test_only_missing_or_empty_secrets_are_regenerated(ready: Path) -> None:
    kept = (ready / "secrets/ray_token").read_text()
    (ready / "secrets/grafana_password").unlink()
    (ready / "secrets/store_root_password").chmod(0o644)
    (ready / "secrets/store_root_password").write_text("")
    assert stack_env.write_env(ready, HOST) == ["secrets/store_root_password", "secrets/grafana_password"]
    assert len((ready / "secrets/store_root_password").read_text()) >= 32
    assert (ready / "secrets/ray_token").read_text() == kept


def test_secrets_are_readable_by_services_and_closed_to_others(ready: Path) -> None:
    assert stat.S_IMODE((ready / "secrets").stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (ready / "secrets").iterdir()}
    names = secrets_folder.names(ready)
    assert modes == {name: 0o644 if name in secrets_folder.TO_FILL_IN else 0o444 for name in names}


def test_two_hosts_never_share_secrets(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        secrets_folder.write_missing(tmp_path / name / "secrets")
    for name in secrets_folder.FILES.keys() - secrets_folder.TO_FILL_IN:
        assert (tmp_path / "one/secrets" / name).read_text() != (tmp_path / "two/secrets" / name).read_text(), name


def test_accounts_read_back_as_written(tmp_path: Path) -> None:
    formats.mlflow_account("job", tmp_path / "mlflow")
    formats.s3_account("job", tmp_path / "s3")
    formats.postgres_service("mlflow", tmp_path / "postgres")
    for user, secret in (
        credentials.read_mlflow_account(tmp_path / "mlflow"),
        credentials.read_s3_account(tmp_path / "s3"),
        formats.read_postgres_service(tmp_path / "postgres"),
    ):
        assert user in ("job", "mlflow")
        assert len(secret) >= 32


def test_metrics_token_is_signed_with_accounts_key(tmp_path: Path) -> None:
    (tmp_path / "root").write_text(formats.password())
    store.metrics_token(tmp_path / "root", tmp_path / "token")
    signed, signature = (tmp_path / "token").read_text().rsplit(".", 1)
    user, key = store.metrics_account((tmp_path / "root").read_text())
    expected = hmac.new(key.encode(), signed.encode(), hashlib.sha512).digest()
    assert base64.urlsafe_b64encode(expected).rstrip(b"=").decode() == signature
    claims = json.loads(base64.urlsafe_b64decode(signed.split(".")[1] + "=="))
    assert claims["sub"] == user == "prometheus"
    assert len(key) == 32
    assert store.metrics_account(formats.password())[1] != key


def test_prometheus_sends_headers_that_keep_it_out_of_frames(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("correct")
    formats.prometheus_web(tmp_path / "password", tmp_path / "web")
    headers = yaml.safe_load((tmp_path / "web").read_text())["http_server_config"]["headers"]
    # Prometheus refuses to start with other names than these three and two, and with `DENY`.
    assert headers.keys() <= {
        *("Content-Security-Policy", "X-Content-Type-Options", "X-Frame-Options"),
        *("Strict-Transport-Security", "X-XSS-Protection"),
    }
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == ("nosniff", "deny")


LAYOUTS = {"host": 1, "gpu": 2, "generated": 5}


@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "rocm"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_worker_has_name_logs_and_devices_of_layout(tmp_path: Path, accelerator: str, layout: str) -> None:
    found = declared.services(checkout(tmp_path, gpus=5, ACCELERATOR=accelerator, WORKER_LAYOUT=layout))
    names = sorted(name for name in found if name.startswith("ray-worker-"))
    assert len(names) == (1 if (accelerator, layout) == ("cpu", "generated") else LAYOUTS[layout])
    for index, name in enumerate(names):
        worker = found[name]
        assert (worker["container_name"], worker["hostname"]) == (f"${{STACK_PREFIX:-}}{name}", name)
        assert f"{name}-logs:/tmp/ray" in worker["volumes"]
        assert f"{name}-logs:/logs/{name}:ro" in found["log-shipper"]["volumes"]
        assert f"{name}-logs=27003:27003" in found["ownership"]["command"]
        devices = worker.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
        ids = {"count": "all"} if layout == "host" else {"device_ids": [str(index)]}
        assert devices == ([{"driver": "nvidia", **ids, "capabilities": ["gpu"]}] if accelerator == "cuda" else [])
        node = "/dev/dri" if layout == "host" else f"/dev/dri/renderD{128 + index}"
        assert worker.get("devices", []) == (["/dev/kfd", node] if accelerator == "rocm" else [])


def test_generated_layout_is_written_for_host(ready: Path) -> None:
    env = (ready / ".env").read_text().replace("WORKER_LAYOUT=gpu", "WORKER_LAYOUT=generated")
    (ready / ".env").write_text(env)
    assert stack_env.write_env(ready, HOST)[:2] == ["compose/stack.generated.yaml", "the sizes of 1 worker into .env:"]


def test_generated_files_follow_settings_at_start(ready: Path) -> None:
    assert generated.write(ready, loaded(ready), HOST) == []
    half = generated.write(ready, loaded(ready), HOST, "tracking")
    assert half == ["compose/stack.generated.yaml", "docker/prometheus/services.generated.yml"], "Prometheus restarts"
    append(ready, "S3_ENDPOINT_URL=https://s3.example.org\n")
    assert len(generated.write(ready, loaded(ready), HOST)) == 3
    assert "minio:9000" not in (ready / generated.SCRAPES).read_text() + (ready / generated.SITES).read_text()
    # Containers of other users read them.
    assert {stat.S_IMODE((ready / file).stat().st_mode) for file in (generated.SCRAPES, generated.SITES)} == {0o644}


def test_missing_generated_files_are_written_before_a_verb(root: Path) -> None:
    generated.write_missing(root)
    assert not (root / generated.FILE).exists(), "there is no .env"
    (root / ".env").write_text("RAY_PORT=none\n")
    generated.write_missing(root)
    assert not (root / generated.FILE).exists(), "the verb itself reports what is wrong with .env"
    (root / ".env").unlink()
    stack_env.write_env(root, HOST)
    before = (root / generated.FILE).read_text()
    (root / generated.FILE).write_text(f"{before} ")
    generated.write_missing(root)
    assert (root / generated.FILE).read_text() == f"{before} "
    (root / generated.FILE).unlink()
    generated.write_missing(root)
    assert (root / generated.FILE).read_text() == before


def test_checkout_of_version_without_generated_files_gets_none(ready: Path) -> None:
    """An upgrade that fails returns to one, and starts it with the program of the new version."""
    for file in (generated.FILE, generated.SCRAPES, generated.SITES):
        (ready / file).unlink()
    former = {"include": [{"path": ["monitoring.yaml", "monitoring.${ACCELERATOR:-cpu}.yaml"]}, "gateway.yaml"]}
    (ready / "compose/compose.yaml").write_text(yaml.safe_dump(former))
    exporter = {"services": {"dcgm-exporter": {"image": "exporter", "profiles": ["gpu-metrics"]}}}
    (ready / "compose/monitoring.cuda.yaml").write_text(yaml.safe_dump(exporter))
    settings = StackSettings.load(ready / ".env", accelerator="cuda")
    assert generated.write(ready, settings, HOST) == []
    assert not (ready / generated.FILE).exists()
    assert "dcgm-exporter" not in declared.services(ready)
    append(ready, "ACCELERATOR=cuda\n")
    assert "dcgm-exporter" in declared.services(ready)
    assert "dcgm-exporter" in services.exporters(ready)


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
def test_invalid_setting_error_names_variable_value_and_fix(ready: Path, line: str, expected: str) -> None:
    append(ready, line + "\n")
    with pytest.raises(SettingsError, match=expected):
        loaded(ready)


def test_missing_env_file_error_names_command(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"There is no .*\.env; run `make env`"):
        StackSettings.load(tmp_path / ".env")


def test_only_starts_one_half_of_stack(ready: Path) -> None:
    settings = loaded(ready)
    tracking, ray = (services.start_variables(settings, half) for half in ("tracking", "ray"))
    assert "ray" not in tracking["COMPOSE_PROFILES"].split(",")
    assert tracking["JOBS_ADDRESS"] == ""
    assert "tracking" not in ray["COMPOSE_PROFILES"].split(",")
    assert ray["TRACKING_ADDRESS"] == ""
    with pytest.raises(SettingsError, match="ONLY=grafana is unknown; use one of tracking, ray"):
        services.start_variables(settings, "grafana")


def test_ssh_command_forwards_every_page(ready: Path) -> None:
    pages = services.pages(ready)
    line = services.ssh_line(pages, "ana@gpu-host")
    assert line.endswith(" ana@gpu-host")
    assert all(f"-L {page.port}:127.0.0.1:{page.port}" in line for page in pages)


def test_full_disk_error_names_needed_space(tmp_path: Path) -> None:
    (problem,) = preflight._disk_problems(tmp_path / "not" / "visible", 10**6)
    assert "DISK_NEEDED_GB=1000000" in problem
    assert list(preflight._disk_problems(tmp_path, 0)) == []


def test_network_of_another_stack_is_reported(ready: Path) -> None:
    settings = loaded(ready)
    mine, other, office = (ipaddress.ip_network(text) for text in ("10.213.76.0/24", "10.213.0.0/16", "172.17.0.0/16"))
    assert list(preflight._network_problems(settings, {"mlplatform_cluster": [mine], "bridge": [office]})) == []
    (problem,) = preflight._network_problems(settings, {"vpn": [office, other]})
    assert "CLUSTER_NETWORK=10.213.76 overlaps with Docker's network vpn" in problem


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, declared.Service]:
    """Every service of a stack with its own store, two workers and the exporter of NVIDIA's GPUs."""
    return declared.services(checkout(tmp_path_factory.mktemp("shipped"), ACCELERATOR="cuda"))


def test_every_published_port_is_a_page_on_loopback(shipped: dict[str, declared.Service]) -> None:
    published = {
        (name, port)
        for name, service in shipped.items()
        # UDP, and the ports of pages at another address.
        for port in (service.get("ports", ()) if name not in ("hub", "proxy") else ())
    }
    pages = services.pages(CHECKOUT, StackSettings.defaults())
    assert published == {(page.service, f"127.0.0.1:{page.written}:{page.inside}") for page in pages}
    assert len(published) == len({page.port for page in pages}) >= 7


def test_port_that_is_none_is_named(root: Path) -> None:
    (root / ".env").write_text("GRAFANA_PORT=3000x\n")
    with pytest.raises(SettingsError, match=r"GRAFANA_PORT='3000x' is not a port: set it in \.env to a number"):
        services.pages(root)


def test_front_page_links_to_every_page_but_its_own() -> None:
    pages = services.pages(CHECKOUT, StackSettings.defaults())
    text = generated.front_page(pages)
    for page in pages:
        text = text.replace(page.written, f'"{page.setting}"')
    tools = json.loads(text)
    linked = [page for page in pages if "health" in page.facts]
    # The dashboard has the gateway's own address, and S3 has no page.
    assert not {"RAY_PORT", "S3_PORT"} & {page.setting for page in linked}
    assert [(tool["title"], tool["name"], tool["port"]) for tool in tools] == [
        (page.title, page.name, page.setting) for page in linked
    ]
    by_name = {tool["name"]: tool for tool in tools}
    assert by_name["grafana"]["profile"] == "grafana"
    assert by_name["grafana"]["health"] == "http://grafana:3000/api/health"
    assert by_name["minio"]["health"] == "http://minio:9000/minio/health/live"
    assert by_name["minio"]["profile"] == ""


def test_jobs_share_no_network_with_services_without_login(shipped: dict[str, declared.Service]) -> None:
    names = ("alertmanager", "postgres-exporter", "dcgm-exporter", "postgres")
    exporter = declared.inherited(CHECKOUT / "compose/accelerator.rocm.yaml", "amd-exporter", {})
    found = [*(shipped[name] for name in names), exporter]
    assert not [service for service in found if "cluster" in service["networks"]]


def test_only_what_jobs_or_prometheus_need_shares_network_of_ray(shipped: dict[str, declared.Service]) -> None:
    services_of_ray = {name for name, service in shipped.items() if "cluster" in service.get("networks", ())}
    of_ray = {"ray-head", "ray-worker-0", "ray-worker-1"}
    used_by_jobs, of_hosts = {"gateway", "minio", "mlflow"}, {"hub", "copies"}
    # Prometheus reads the nodes' metrics, and notebooks are clients of Ray.
    assert services_of_ray == of_ray | used_by_jobs | of_hosts | {"prometheus", "notebook"}


NAMED = {"ray-head", "ray-worker-0", "ray-worker-1", "minio", "postgres", "mlflow", "notebook"}
"""Containers that guides name. Compose names all others after the project."""


def test_only_containers_of_guides_have_names_of_their_own(shipped: dict[str, declared.Service]) -> None:
    named = {name: service["container_name"] for name, service in shipped.items() if "container_name" in service}
    assert named == {name: f"${{STACK_PREFIX:-}}{name}" for name in NAMED}


@pytest.mark.parametrize(
    ("text", "known", "resolved"),
    [
        ("store${URL:+.external}.yaml", {}, "store.yaml"),
        ("store${URL:+.external}.yaml", {"URL": ""}, "store.yaml"),
        ("store${URL:+.external}.yaml", {"URL": "x"}, "store.external.yaml"),
        ("a.${B:-cpu}", {"B": ""}, "a.cpu"),
        ("a.${B:-cpu}", {"B": "cuda"}, "a.cuda"),
        ("${B-unset}", {"B": ""}, ""),
        ("${B-unset}", {}, "unset"),
        ("${B+set}", {"B": ""}, "set"),
        ("${B}", {}, ""),
        ("${B}c${B}", {"B": "1"}, "1c1"),
    ],
)
def test_variables_are_replaced_as_by_compose(text: str, known: dict[str, str], resolved: str) -> None:
    assert declared.resolve(text, known) == resolved


def test_variable_of_shell_precedes_that_of_env(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / ".env").write_text("RAY_PORT=18265\nGRAFANA_PORT=13000\n")
    monkeypatch.setenv("RAY_PORT", "28265")
    ports = {page.setting: page.port for page in services.pages(root)}
    assert (ports["RAY_PORT"], ports["GRAFANA_PORT"], ports["MLFLOW_PORT"]) == (28265, 13000, 8000)


def test_password_of_a_new_service_needs_no_list(root: Path) -> None:
    with (root / "compose/data.yaml").open("a") as file:
        file.write("secrets:\n  wiki_password: {file: ../secrets/wiki_password}\n")
    assert "secrets/wiki_password" in stack_env.write_env(root, HOST)
    assert len((root / "secrets/wiki_password").read_text()) >= 32
    (root / "secrets/wiki_password").unlink()
    (finding,) = [found for found in start.secret_files(Place(root)) if "wiki" in found.problem]
    assert finding.repair
    finding.repair()
    assert (root / "secrets/wiki_password").stat().st_size


def test_each_secret_with_a_format_is_mounted() -> None:
    files = [path for path in (CHECKOUT / "compose").glob("*.yaml") if ".generated." not in path.name]
    mounted = {*re.findall(r"file: \.\./secrets/([\w.]+)", "".join(path.read_text() for path in files))}
    assert mounted >= set(secrets_folder.FILES)
    assert mounted == set(secrets_folder.names(CHECKOUT))


def test_each_image_of_others_has_a_setting(shipped: dict[str, declared.Service]) -> None:
    settings = {name: services.image_setting(service) for name, service in shipped.items()}
    assert {name: setting for name, setting in settings.items() if setting} == {
        **{"postgres": "POSTGRES_IMAGE", "minio": "S3_IMAGE", "dcgm-exporter": "GPU_EXPORTER_IMAGE"},
        **{"prometheus": "PROMETHEUS_IMAGE", "alertmanager": "ALERTMANAGER_IMAGE", "grafana": "GRAFANA_IMAGE"},
        "postgres-exporter": "POSTGRES_EXPORTER_IMAGE",
    }
    others = {name for name, service in shipped.items() if not service["image"].startswith("mlplatform-")}
    assert others == {name for name, setting in settings.items() if setting}


@pytest.mark.parametrize("only", ["", "tracking"])
def test_only_images_of_started_services_are_required(
    ready: Path, program: Callable[[str, str], Path], only: str
) -> None:
    found = {"postgres": {"image": "postgres:17"}, "ray-head": {"image": "mlplatform-ray:1"}}
    found |= {name: {"image": f"mlplatform-{name}:1"} for name in ("minio", "platform")}
    script = f"""case "$*" in
  *"image inspect "*mlplatform-platform:1) echo sha256:1 ;;
  *" config "*) echo "$COMPOSE_PROFILES" >{ready}/profiles; echo '{json.dumps({"services": found})}' ;;
esac"""
    program("docker", script)
    assert images.missing_builds(images.configured(ready, only)) == ["mlplatform-minio:1", "mlplatform-ray:1"]
    assert ("ray" in (ready / "profiles").read_text().strip().split(",")) == (not only)


def test_unpullable_image_error_names_setting_and_workaround() -> None:
    profiles = ["tracking", "grafana"]
    grafana = {"image": "grafana/grafana:12.4", "profiles": ["grafana"]}
    problem = images._problem("grafana", grafana, "GRAFANA_IMAGE", "a\nno such host\n", profiles)
    assert problem == (
        "The image grafana/grafana:12.4 of the service grafana cannot be pulled (no such host): set GRAFANA_IMAGE in "
        ".env to one that this host reaches, or leave the service out with COMPOSE_PROFILES=tracking."
    )
    problem = images._problem("postgres", {"image": "postgres:17"}, "POSTGRES_IMAGE", "no such host", profiles)
    assert problem.endswith("set POSTGRES_IMAGE in .env to one that this host reaches.")


def test_start_with_backup_target_adds_timer(ready: Path, tmp_path: Path) -> None:
    settings = loaded(ready)
    assert "backup-timer" not in services.profiles_of(settings)
    assert compose.timer_variables(ready, settings) == {}

    folder = tmp_path / "disk" / "backups"
    append(ready, f"BACKUP_TO={folder}\n")
    settings = loaded(ready)
    assert all(services.profiles_of(settings, only).count("backup-timer") == 1 for only in ("", "tracking", "ray"))
    found = compose.timer_variables(ready, settings)
    assert found["BACKUP_FOLDER"] == str(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    append(ready, "BACKUP_TO=s3:https://s3.example.org/bucket\n")
    of_server = compose.timer_variables(ready, loaded(ready))
    assert of_server.keys() == {"SETTINGS_DIGEST"}
    assert of_server["SETTINGS_DIGEST"] != found["SETTINGS_DIGEST"], "the timer would keep the former settings"


def test_impossible_backup_folder_error_names_setting(ready: Path) -> None:
    append(ready, "BACKUP_TO=.env/backups\n")
    with pytest.raises(HostError, match=r"The folder .*/backups .* cannot be made \(.*BACKUP_TO in \.env"):
        compose.timer_variables(ready, loaded(ready))

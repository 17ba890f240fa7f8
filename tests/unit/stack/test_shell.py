"""Variables that a shell exports for other programs, and the verbs and commands that call Docker."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlplatform_stack.settings import StackSettings

CHECKOUT = Path(__file__).parents[3]

# Answers the checks of the host, and records the environment of each call of Compose.
DOCKER = """\
#!/bin/sh
case "$*" in
  "compose version"*) echo 2.40.0 ;;
  "version"*) echo 28.0.0 ;;
  "compose"*) env >>"$CALLS" ;;
esac
"""

OF_COMPOSE = ("COMPOSE_PROJECT_NAME", "COMPOSE_FILE", "COMPOSE_PROFILES", "COMPOSE_ENV_FILES", "COMPOSE_ANSI")

ENGINE = "unix:///run/mine.sock"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with settings, and a program in the place of Docker that comes first on PATH."""
    root = tmp_path / "a checkout"
    for name in ("compose", "platform"):
        shutil.copytree(CHECKOUT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Makefile", ".env.example"):
        shutil.copy(CHECKOUT / name, root)
    text = (root / ".env.example").read_text().replace("MLPLATFORM_VERSION=", "MLPLATFORM_VERSION=0")
    (root / ".env").write_text(text)
    (root / "compose/stack.generated.yaml").touch()
    (tmp_path / "docker").write_text(DOCKER)
    (tmp_path / "docker").chmod(0o755)
    return root


def run(checkout: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{checkout.parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "CALLS": str(checkout.parent / "calls"), **variables}
    return subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, check=False)


def exported(checkout: Path) -> dict[str, str]:
    """A foreign value of every variable that Compose could take from the shell."""
    text = " ".join(file.read_text() for file in (checkout / "compose").rglob("*.yaml"))
    names = {*re.findall(r"\$\{(\w+)", text), *StackSettings.variables(), *OF_COMPOSE, "DOCKER_DEFAULT_PLATFORM"}
    return {name: "another=value" for name in names if not name.lower().endswith(("_digest", "_proxy"))}


@pytest.mark.parametrize(
    "command", [("make", "down"), ("make", "logs"), (sys.executable, "-m", "mlplatform", "stack", "status")]
)
def test_compose_gets_no_foreign_variable(checkout: Path, command: tuple[str, ...]) -> None:
    run(checkout, *command, **exported(checkout), DOCKER_HOST=ENGINE, no_proxy="example.org")
    seen = (checkout.parent / "calls").read_text()
    assert [line for line in seen.splitlines() if "another=value" in line] == []
    assert f"DOCKER_HOST={ENGINE}\n" in seen
    assert "no_proxy=example.org\n" in seen


@pytest.mark.parametrize("missing", [False, True])
def test_verb_writes_missing_generated_file_first(checkout: Path, missing: bool) -> None:
    """As for a `make down` after a `git pull`."""
    (checkout.parent / "make").write_text('#!/bin/sh\necho "make $*" >>"$CALLS"\n')
    (checkout.parent / "make").chmod(0o755)
    if missing:
        (checkout / "compose/stack.generated.yaml").unlink()
    assert run(checkout, "platform/compose.sh", "ps").returncode == 0
    first = (checkout.parent / "calls").read_text().splitlines()[0]
    assert (first == "make --no-print-directory env") is missing


def test_unavailable_engine_of_the_shell_is_named(checkout: Path) -> None:
    (checkout.parent / "docker").write_text("#!/bin/sh\necho 'no daemon' >&2; exit 1\n")
    done = run(checkout, sys.executable, "-m", "mlplatform", "stack", "up", DOCKER_CONTEXT="laptop")
    assert done.returncode
    assert "this shell exports DOCKER_CONTEXT=laptop" in done.stderr


@pytest.mark.parametrize(
    ("words", "variables", "absent"),
    [
        (("restore", "FROM=/backup"), {"FORCE": "1", "SNAPSHOT": "foreign"}, r"--force|foreign"),
        (("prune",), {"APPLY": "1"}, "--apply"),
        (("remove-host",), {"NAME": "foreign"}, "foreign"),
        (("bundle",), {"TO": "foreign"}, "foreign"),
        (("join",), {"FROM": "foreign"}, "foreign"),
        (("up",), {"BUNDLE": "foreign", "ONLY": "foreign"}, "foreign"),
    ],
)
def test_verbs_take_arguments_from_their_line_only(
    checkout: Path, words: tuple[str, ...], variables: dict[str, str], absent: str
) -> None:
    done = run(checkout, "make", "--dry-run", *words, **variables)
    assert done.returncode == 0, done.stderr
    assert not re.search(absent, done.stdout)
    given = run(checkout, "make", "--dry-run", *words, *(f"{name}={value}" for name, value in variables.items()))
    assert re.search(absent, given.stdout), "the same arguments on the line count"


def test_new_settings_have_the_mirrors_of_the_shell(checkout: Path) -> None:
    (checkout / ".env").unlink()
    mirrors = {"PIP_INDEX_URL": "https://mirror.example.org/simple", "GOPROXY": "https://go.example.org,direct"}
    secret = {"TORCH_INDEX_URL": "https://me:secret@mirror.example.org"}
    done = run(checkout, sys.executable, "-m", "mlplatform", "stack", "env", **mirrors, **secret)
    assert done.returncode == 0, done.stderr
    written = (checkout / ".env").read_text()
    assert {name: value for name, value in re.findall(r"^(\w+)=(.*)$", written, re.M) if name in mirrors} == mirrors
    assert "me:secret" not in written


# Of other clouds and trackers, and two that only tune clients.
FOREIGN = {
    "AWS_PROFILE": "work",
    "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
    "AWS_ENDPOINT_URL_S3": "https://r2.example.org",
    "MLFLOW_TRACKING_TOKEN": "t",
    "MLFLOW_REGISTRY_URI": "https://mlflow.example.org",
    "RAY_API_SERVER_ADDRESS": "http://ray.example.org",
    "AWS_MAX_ATTEMPTS": "5",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "9",
}


def test_connected_shell_keeps_no_variable_of_another_server(checkout: Path) -> None:
    line = f'eval "$({sys.executable} -m mlplatform env)"; env'
    done = run(checkout, "sh", "-c", line, **FOREIGN, RAY_ADDRESS="auto", MLPLATFORM_DATASETS="/data")
    left = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert FOREIGN.keys() & left.keys() == {"AWS_MAX_ATTEMPTS", "MLFLOW_HTTP_REQUEST_TIMEOUT"}
    assert left["RAY_ADDRESS"] == "http://127.0.0.1:8265"
    assert left["MLPLATFORM_DATASETS"] == "s3://datasets"
    named = done.stderr.rpartition(": ")[2].split()
    assert named == sorted(FOREIGN.keys() - left.keys()), "people see what is unset"


@pytest.fixture
def caching(checkout: Path) -> Path:
    """The checkout, whose engine runs a worker and Alice's notebook, and unpacks into a folder per service."""
    script = """#!/bin/sh
case "$*" in
  *" ps --services") printf '%s\\n' $RUNNING ;;
  *" exec "*) for word; do case $word in ray-*|notebook-*) mkdir -p "$0.$word"; tar -xC "$0.$word" ;; esac; done ;;
esac
"""
    (checkout.parent / "docker").write_text(script)
    shutil.copy(CHECKOUT / "platform/cache.sh", checkout / "platform")
    (checkout / "models/torch").mkdir(parents=True)
    (checkout / "models/torch/weights").write_text("weights")
    return checkout


def test_models_are_copied_to_caches_of_jobs_and_notebooks(caching: Path) -> None:
    services = "gateway ray-worker-0 ray-worker-1 notebook-alice"
    done = run(caching, "platform/cache.sh", "models", RUNNING=services)
    assert done.returncode == 0, done.stderr
    found = {path.name for path in caching.parent.glob("docker.*") if (path / "torch/weights").exists()}
    assert found == {"docker.ray-worker-0", "docker.notebook-alice"}
    assert "Copied to /shared/cache of ray-worker-0: torch" in done.stdout


def test_cache_that_cannot_be_copied_is_named(caching: Path) -> None:
    done = run(caching, "platform/cache.sh", "compose", RUNNING="ray-worker-0")
    assert (done.returncode, "holds neither huggingface/hub nor torch" in done.stderr) == (1, True)
    done = run(caching, "platform/cache.sh", "models", RUNNING="")
    assert (done.returncode, "the stack does not run" in done.stderr) == (1, True)
    # As with a file that cannot be read; the tar that unpacks ends well.
    tar = '#!/bin/sh\n[ $1 != --create ] && exec /bin/tar "$@"\n/bin/tar "$@"; exit 2'
    (caching.parent / "tar").write_text(tar)
    (caching.parent / "tar").chmod(0o755)
    done = run(caching, "platform/cache.sh", "~/models", RUNNING="ray-worker-0", HOME=str(caching))
    assert (done.returncode, done.stdout) == (2, "")

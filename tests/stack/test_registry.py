"""Models and data sets on the stack: promotion webhooks, downloads, and the accounts that may use them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from host import SCRIPTS, Stack, Trained, notebook_of, run, wait_for

from mlplatform.secrets.credentials import read_mlflow_account

FOLDER = "/tmp/receiver"
PORT = "9500"

RELEASE = """
import sys, mlplatform
from mlplatform.registry import lineage, lookup
version = mlplatform.register(lookup.resolve("digits@champion").source, "released")
mlplatform.promote("released", version.version, metric="test_accuracy")
for name, value in lineage.describe("released@champion").items():
    print(name, value)
"""

USES_DATA = """
import mlplatform
with mlplatform.job_run(experiment="uses-data"):
    data = mlplatform.dataset("numbers")
    folder = data.download("/tmp/numbers-of-job")
    print("read", (folder / "small" / "7.txt").read_text(), "from", data.uri)
"""


@pytest.fixture
def numbers(stack: Stack) -> Iterator[str]:
    """A folder in the notebook: a file large enough for a multipart upload, and 200 small ones."""
    folder = "/tmp/numbers"
    make = (
        f"mkdir -p {folder}/small && head -c 50000000 /dev/urandom >{folder}/large && "
        f"for n in $(seq 200); do echo $n >{folder}/small/$n.txt; done"
    )
    stack.execute("notebook", "sh", "-c", make)
    yield folder
    stack.execute("notebook", "sh", "-c", "rm -rf /tmp/numbers*")


@pytest.fixture
def promotions(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[dict[str, str]]]]:
    """A webhook receiver in the notebook's container; returns the promotions that it has received so far."""
    # Its thread would change the environment while `Stack` reads it.
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    account = zip(("USERNAME", "PASSWORD"), read_mlflow_account(stack.root / "secrets/mlflow_admin"), strict=True)
    for part, value in account:
        monkeypatch.setenv(f"MLFLOW_TRACKING_{part}", value)
    registry = MlflowClient(f"http://127.0.0.1:{stack.settings.mlflow_port}")
    stack.write("notebook", f"{FOLDER}/secret", "known to both")
    stack.write("notebook", f"{FOLDER}/receiver.py", (SCRIPTS / "receiver.py").read_text())
    start = f"echo $$ >pid; exec python receiver.py {PORT} secret deployed >output 2>&1"
    run("docker", "exec", "--detach", "--workdir", FOLDER, stack.container("notebook"), "sh", "-c", start)

    def output() -> list[str]:
        return stack.execute("notebook", "cat", f"{FOLDER}/output").stdout.splitlines()

    try:
        wait_for(lambda: any("listening" in line for line in output()), "the receiver to listen")
        url, events = f"http://notebook:{PORT}/", ["model_version_alias.created"]
        added = registry.create_webhook("promotions", url, events, secret="known to both")
        yield lambda: [json.loads(line) for line in output() if line.startswith("{")]
        registry.delete_webhook(added.webhook_id)
        assert not registry.list_webhooks()
    finally:
        stack.execute("notebook", "sh", "-c", f"kill $(cat {FOLDER}/pid); rm -rf {FOLDER}")


def test_promoted_model_and_checkpoint_reproduce_run_accuracy(
    stack: Stack, trained: Trained, promotions: Callable[[], list[dict[str, str]]]
) -> None:
    described = stack.execute("notebook", "python", "-c", RELEASE).stdout
    assert f"job {trained.id}" in described
    (message,) = wait_for(promotions, "the promotion at the receiver")
    assert (message["model"], message["alias"]) == ("released", "champion")
    show = ("notebook", "mlplatform", "models", "show", "released@champion")
    wait_for(lambda: "files are as the gateway has recorded them" in stack.execute(*show).stdout, "the digests")

    stack.write("notebook", f"{FOLDER}/accuracy.py", (SCRIPTS / "accuracy.py").read_text())
    checkpoints = f"s3://ray/{trained.id}/fit"
    command = ("python", f"{FOLDER}/accuracy.py", "/home/jovyan/work", f"{FOLDER}/deployed/released", checkpoints)
    again = json.loads(stack.execute("notebook", *command).stdout.splitlines()[-1])
    (job_run,) = stack.runs_of(trained.id)
    accuracy = next(metric["value"] for metric in job_run["data"]["metrics"] if metric["key"] == "test_accuracy")
    assert again == pytest.approx({"model": accuracy, "checkpoint": accuracy}, abs=1e-6)


REPLACED = """
import sys, mlflow
from mlplatform.registry import lineage
name, registry = sys.argv[1], mlflow.MlflowClient()
print(lineage.location_of(registry, f"models:/{name}/1").removeprefix("mlflow-artifacts:/").strip("/"))
"""


@pytest.mark.usefixtures("trained")
def test_replaced_file_of_registered_model_is_named(stack: Stack) -> None:
    register = "import mlplatform; from mlplatform.registry import lookup; "
    register += "mlplatform.register(lookup.resolve('digits@champion').source, 'replaced')"
    stack.execute("notebook", "python", "-c", register)
    show = ("notebook", "mlplatform", "models", "show", "replaced/1")
    wait_for(lambda: "files are as the gateway has recorded them" in stack.execute(*show).stdout, "the digests")
    folder = stack.execute("notebook", "python", "-c", REPLACED, "replaced").stdout.split()[-1]
    with stack.mlflow as client:
        address = f"http://127.0.0.1:{stack.settings.mlflow_port}/api/2.0/mlflow-artifacts/artifacts/{folder}/MLmodel"
        original = client.get(address).raise_for_status().content
        try:
            client.put(address, content=original + b"# replaced").raise_for_status()
            for words in (("show", "replaced/1"), ("download", "replaced/1", "/tmp/replaced-model")):
                refused = stack.execute("notebook", "mlplatform", "models", *words, check=False)
                assert refused.returncode == 1
                assert "The file MLmodel of replaced version 1 does not have the checksum" in refused.stderr, words
        finally:
            client.put(address, content=original).raise_for_status()
            client.request("DELETE", "/registered-models/delete", json={"name": "replaced"}).raise_for_status()


@pytest.mark.usefixtures("trained")
def test_notebook_shows_download_progress(stack: Stack) -> None:
    cell = "import mlplatform\nmlplatform.download('digits@champion', '/tmp/numbers-model')"
    stack.write("notebook", "/tmp/numbers.ipynb", notebook_of(cell))
    printed = stack.nbconvert("/tmp/numbers.ipynb")
    stack.execute("notebook", "sh", "-c", "rm -rf /tmp/numbers*")
    assert "Downloading digits version" in printed
    assert "(100 %)" in printed


def test_data_set_round_trips_through_bucket(stack: Stack, numbers: str) -> None:
    kept = stack.execute("notebook", "mlplatform", "data", "put", numbers, "numbers").stdout.split()[0]
    assert stack.execute("notebook", "mlplatform", "data", "put", numbers, "numbers").stdout.split()[0] == kept
    assert kept in stack.execute("notebook", "mlplatform", "data", "list").stdout
    stack.execute("notebook", "mlplatform", "data", "get", kept, "/tmp/numbers-again")
    stack.execute("notebook", "diff", "--recursive", numbers, "/tmp/numbers-again")
    assert len(stack.objects("datasets", f"numbers/{kept.split('@')[1]}")) == 201


def test_job_reads_data_set_and_run_records_it(stack: Stack, numbers: str) -> None:
    kept = stack.execute("notebook", "mlplatform", "data", "put", numbers, "numbers").stdout.split()[0]
    stack.write("notebook", "/tmp/numbers-job/job.py", USES_DATA)
    command = "cd /tmp/numbers-job && ray job submit --working-dir . -- python job.py"
    log = stack.execute("notebook", "bash", "-c", command).stdout
    assert "read 7\n from s3://datasets/numbers/" in log, log
    job_id = next(word.strip("'") for word in log.split() if word.strip("'").startswith("raysubmit_"))
    (job_run,) = stack.runs_of(job_id)
    (used,) = job_run["inputs"]["dataset_inputs"]
    assert used["dataset"]["name"] == "numbers"
    assert used["dataset"]["digest"].startswith(kept.split("@")[1])

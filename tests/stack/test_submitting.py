"""Submissions from a notebook's cell and with the tutorial's command, without manual settings."""

from __future__ import annotations

import json
import uuid

from host import Stack, Trained, notebook_of

# Cells of a notebook that a user could have typed.
CELLS = [
    "out = !cd ~/work && ray job submit --working-dir . -- python digits.py --epochs 2\n"
    "print('\\n'.join(out[-5:]))\n"
    "job = next(line for line in out if 'raysubmit_' in line).split(\"'\")[1]",
    "import mlflow\n"
    "found = mlflow.search_runs(search_all_experiments=True, filter_string=f\"tags.`mlplatform.job_id` = '{job}'\")\n"
    "assert len(found) == 1 and found.status[0] == 'FINISHED', found\n"
    "print('read back', found['metrics.test_accuracy'][0])",
]

TRAIN = """
import os, socket
import ray, torch
ray.init()
print("data", os.environ["FOOD11_DATA_DIR"], "note", os.environ["NOTE"])
print("gpus", os.environ["CUDA_VISIBLE_DEVICES"], "on", socket.gethostname())
note = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(lambda: os.environ["NOTE"])
print("notes of workers", set(ray.get([note.remote() for _ in range(6)])))
"""

FIND_DATABRICKS = "from mlplatform.tracking import server; server.check('databricks')"
NODES = ("ray-head", "ray-worker-0", "ray-worker-1")

PLAIN = """
import mlflow
with mlflow.start_run() as unnamed:
    print("experiment", unnamed.info.experiment_id)
mlflow.set_experiment("terminal")
run = mlflow.start_run()
mlflow.log_metric("loss", 1)
print("tracked", run.info.run_id)
"""


def test_notebook_submits_job_and_reads_metrics(stack: Stack, trained: Trained) -> None:
    assert "\nRAY_ADDRESS=http://gateway:8265\n" in stack.execute("notebook", "env").stdout
    stack.write("notebook", "/tmp/tour.ipynb", notebook_of(*CELLS))
    printed = stack.nbconvert("/tmp/tour.ipynb")
    assert "read back 0." in printed or "read back 1." in printed, printed


def test_tutorial_command_runs_on_worker_with_gpu(stack: Stack) -> None:
    stack.write("notebook", "/tmp/tutorial/train.py", TRAIN)
    runtime = {"env_vars": {"FOOD11_DATA_DIR": "/mnt/Food-11", "NOTE": "from runtime.json"}}
    stack.write("notebook", "/tmp/tutorial/runtime.json", json.dumps(runtime))
    command = (
        "cd /tmp/tutorial && ray job submit --runtime-env runtime.json --entrypoint-num-gpus 1 --entrypoint-num-cpus 8 "
        "--verbose --working-dir . -- python train.py"
    )
    printed = stack.execute("notebook", "bash", "-c", command).stdout
    assert "data /mnt/Food-11 note from runtime.json" in printed
    assert "notes of workers {'from runtime.json'}" in printed
    assert "gpus 0 on ray-worker-" in printed, printed


def test_plain_script_in_notebook_terminal_is_tracked(stack: Stack) -> None:
    printed = stack.execute("notebook", "python", "-c", PLAIN).stdout
    run_id = printed.split("tracked ")[1].split()[0]
    info = stack.mlflow.get("/runs/get", params={"run_id": run_id}).json()["run"]["info"]
    assert info["status"] == "FINISHED"
    default = stack.mlflow.get("/experiments/get-by-name", params={"experiment_name": "Default"}).json()["experiment"]
    assert f"experiment {default['experiment_id']}\n" in printed, "a run without experiment is not in Default"
    assert info["experiment_id"] != default["experiment_id"]


def test_shared_folder_is_readable_and_writable_on_every_node(stack: Stack) -> None:
    folder = f"/shared/{uuid.uuid4().hex}"
    file = f"{folder}/databrickscfg"
    found = ("env", f"DATABRICKS_CONFIG_FILE={file}", "python", "-c", FIND_DATABRICKS)
    missing = stack.execute("ray-worker-0", *found, check=False)
    assert f"{file} does not exist on ray-worker-0" in missing.stderr
    stack.write("notebook", file, "[DEFAULT]\nhost = https://example.org\ntoken = t\n")
    try:
        for node in NODES:
            stack.execute(node, *found)
            stack.execute(node, "touch", f"{folder}/{node}")
        assert set(stack.execute("notebook", "ls", folder).stdout.split()) == {"databrickscfg", *NODES}
    finally:
        stack.execute("notebook", "rm", "-r", folder)

"""JupyterLab as a person uses it: its terminals, and the notebooks of `jobs/notebooks`."""

from __future__ import annotations

import json

import httpx
from host import Stack
from websockets.sync.client import connect

WORK = "/home/jovyan/work"


def execute(stack: Stack, name: str) -> str:
    """Run a copy of a notebook in its folder, without a screen, and return it with what the cells gave, as Markdown."""
    nbconvert = "jupyter nbconvert --to markdown --execute --stdout"
    return stack.execute("notebook", "sh", "-c", f"cd {WORK}/notebooks && {nbconvert} {name}").stdout


def typed(stack: Stack, command: str) -> str:
    """What a new terminal of JupyterLab shows of a command, up to its end."""
    server = f"127.0.0.1:{stack.settings.notebook_port}"
    token = {"Authorization": f"token {stack.secret('notebook_token')}"}
    with httpx.Client(base_url=f"http://{server}", headers=token, trust_env=False) as jupyter:
        name = jupyter.post("/api/terminals").raise_for_status().json()["name"]
        address, shown = f"ws://{server}/terminals/websocket/{name}", ""
        with connect(address, additional_headers=token, proxy=None) as terminal:
            # In two parts, so that the echo of what is typed does not end it.
            terminal.send(json.dumps(["stdin", f"{command}; echo en''ded\r"]))
            while "ended" not in shown:
                kind, *text = json.loads(terminal.recv(timeout=60))
                shown += text[0] if kind == "stdout" else ""
        jupyter.delete(f"/api/terminals/{name}").raise_for_status()
    return shown


def test_a_terminal_stands_in_the_lessons_and_knows_the_commands(stack: Stack) -> None:
    shown = typed(stack, "pwd; ls README.md digits.py; mlplatform jobs >/dev/null && ray --version && echo $SHELL")
    assert WORK in shown
    assert "ray, version" in shown, shown
    assert "/bin/bash" in shown


def test_first_tour_ends_with_predictions_of_the_downloaded_model(stack: Stack) -> None:
    printed = execute(stack, "first_tour.ipynb")
    assert "SUCCEEDED" in printed
    assert "epoch 3 {'val_accuracy': 0." in printed
    assert "image/png" in printed or "output_" in printed, "the plot"
    assert "digits are right" in printed


def test_mlflow_notebook_deploys_the_best_run_that_has_a_model(stack: Stack, food11: None) -> None:
    """Any lesson's run may be the best: one of a network defined in the lesson, one that logged no model at all."""
    train = "python lightning_food.py --autolog --devices 1 --epochs 1 --size 32"
    # Else MLflow imports torch once more, to find out what the model needs.
    quick = "MLFLOW_REQUIREMENTS_INFERENCE_TIMEOUT=1"
    log = stack.execute("notebook", "sh", "-c", f"cd {WORK}/food11 && {quick} {train}").stdout
    best = log.split("Run: ")[1].split()[0]
    with stack.mlflow as mlflow:
        experiment_id = mlflow.get("/runs/get", params={"run_id": best}).json()["run"]["info"]["experiment_id"]
        created = mlflow.post("/runs/create", json={"experiment_id": experiment_id, "run_name": "no model"}).json()
        without_model = created["run"]["info"]["run_id"]
        for run_id, accuracy in ((best, 2), (without_model, 3)):
            metric = {"run_id": run_id, "key": "test_accuracy", "value": accuracy, "timestamp": 0, "step": 1}
            mlflow.post("/runs/log-metric", json=metric).raise_for_status()
        mlflow.post("/runs/update", json={"run_id": without_model, "status": "FINISHED"}).raise_for_status()

    printed = execute(stack, "mlflow_api.ipynb")

    with stack.mlflow as mlflow:
        found = mlflow.get("/model-versions/search", params={"filter": "name = 'food11-staging'"}).json()
    newest = max(found["model_versions"], key=lambda version: int(version["version"]))
    assert newest["run_id"] == best
    assert "READY" in printed
    assert printed.count("predicted: ") >= 8

"""JupyterLab as users use it: its terminals, and the notebooks of `jobs/notebooks`."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from host import CHECKOUT, Stack, notebook_of, wait_for
from websockets.sync.client import ClientConnection, connect

from mlplatform.client.jobs import Jobs

WORK = "/home/jovyan/work"
PRINT_RUN = "import mlflow\nwith mlflow.start_run() as run:\n    print('run', run.info.run_id)\n"
NOTEBOOKS = CHECKOUT / "jobs" / "notebooks"


class Terminal:
    """A terminal of JupyterLab, controlled through its websocket as the page does."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    def press(self, keys: str) -> None:
        self._socket.send(json.dumps(["stdin", keys]))

    def shown_until(self, text: str, seconds: float = 60) -> str:
        """Return new output up to a text."""
        shown, deadline = "", time.monotonic() + seconds
        while text not in shown:
            try:
                kind, *data = json.loads(self._socket.recv(timeout=max(0, deadline - time.monotonic())))
            except TimeoutError:
                raise AssertionError(f"{text!r} is not shown within {seconds:.0f} s:\n{shown}") from None
            shown += data[0] if kind == "stdout" else ""
        return shown

    def typed(self, command: str, seconds: float = 60) -> str:
        """Type a command, wait until it ends, and return its output."""
        # In two parts, so that the echo of the typed command does not match.
        self.press(f"{command}; echo en''ded\r")
        return self.shown_until("ended", seconds)


@pytest.fixture
def terminal(stack: Stack) -> Iterator[Terminal]:
    """A new terminal of JupyterLab."""
    server = f"127.0.0.1:{stack.settings.notebook_port}"
    token = {"Authorization": f"token {stack.secret('notebook_token')}"}
    with httpx.Client(base_url=f"http://{server}", headers=token, trust_env=False) as jupyter:
        name = jupyter.post("/api/terminals").raise_for_status().json()["name"]
        with connect(f"ws://{server}/terminals/websocket/{name}", additional_headers=token, proxy=None) as socket:
            yield Terminal(socket)
        jupyter.delete(f"/api/terminals/{name}").raise_for_status()


def test_terminal_opens_in_lessons_folder_with_commands(terminal: Terminal) -> None:
    commands = "mlplatform jobs >/dev/null && ray --version && echo $SHELL"
    shown = terminal.typed(f"pwd; ls README.md lessons.md digits.py && {commands}")
    assert WORK in shown
    assert "ray, version" in shown, shown
    assert "/bin/bash" in shown


def test_next_run_in_terminal_records_new_commit(stack: Stack, terminal: Terminal) -> None:
    """The tutorial's use of git: clone, switch, edit, compare, stash, commit, and train before and after."""
    cloned = f"{WORK}/cloned"
    stack.write("notebook", "/tmp/original/train.py", PRINT_RUN)
    git = "git -c user.name=a -c user.email=a@b"
    terminal.typed(f"cd /tmp/original && git init -q && {git} add . && {git} commit -qm one && git branch mlflow")
    terminal.typed(f"git clone -q /tmp/original {cloned}; cd {cloned}; git switch -q mlflow; alias git='{git}'")
    try:
        first = terminal.typed("git status | head -1; python train.py; git rev-parse HEAD", 120)
        assert "On branch mlflow" in first
        changed = terminal.typed(
            "echo '# changed' >>train.py; git --no-pager diff --no-color; git stash -q; git status --short"
        )
        assert "+# changed" in changed
        assert "M train.py" not in changed, "the change was not stashed"
        second = terminal.typed("git stash pop -q; git commit -qam two; python train.py; git rev-parse HEAD", 120)
        commits = [re.findall(r"\b[0-9a-f]{40}\b", shown)[-1] for shown in (first, second)]
        assert commits[0] != commits[1]
        for shown, commit in zip((first, second), commits, strict=True):
            (run_id,) = re.findall(r"run ([0-9a-f]{32})", shown)
            with stack.mlflow as mlflow:
                tags = mlflow.get("/runs/get", params={"run_id": run_id}).json()["run"]["data"]["tags"]
            assert {"key": "mlflow.source.git.commit", "value": commit} in tags
    finally:
        stack.execute("notebook", "rm", "-rf", cloned, "/tmp/original")


def test_terminal_has_tools_of_a_workplace(terminal: Terminal) -> None:
    for program in ("nano", "vi", "less", "unzip", "zip", "htop", "rsync", "tmux", "ssh-keygen", "gcc"):
        assert f"/{program}" in terminal.typed(f"command -v {program}"), program
    refused = terminal.typed("GIT_SSH_COMMAND='ssh -o BatchMode=yes -p 1' git clone git@127.0.0.1:team/models.git")
    assert "Connection refused" in refused, refused
    assert "nano" in terminal.typed("git var GIT_EDITOR")
    shown = terminal.typed("git config --global user.name Ada; ls -a ~/work; git config --global --unset user.name")
    assert ".gitconfig" in shown, "the home outside of work/ ends with the container"


WIDGETS = """
import warnings
warnings.simplefilter("error")
import ipywidgets
from tqdm.auto import trange
from tqdm.notebook import tqdm_notebook
assert issubclass(trange(1).__class__, tqdm_notebook)
from tqdm.contrib.concurrent import thread_map
thread_map(abs, range(3))
ipywidgets.interact(lambda rate: rate, rate=(0.1, 1.0))
"""


def test_widgets_are_drawn(stack: Stack) -> None:
    """Progress bars of tqdm.auto, which Lightning, MLflow and Transformers take, are widgets in a notebook."""
    stack.write("notebook", "/tmp/widgets/bars.ipynb", notebook_of(WIDGETS))
    printed = stack.nbconvert("/tmp/widgets/bars.ipynb", "notebook")
    stack.execute("notebook", "rm", "-r", "/tmp/widgets")
    assert printed.count("application/vnd.jupyter.widget-view+json") >= 3, printed
    extensions = stack.execute("notebook", "sh", "-c", "jupyter labextension list 2>&1").stdout
    assert re.search(r"jupyterlab-manager v\S+ .*enabled.*OK", extensions), extensions


def test_wheels_find_libraries_of_the_system(stack: Stack) -> None:
    """Jobs have the same libraries, as the notebook's image is on top of theirs."""
    folder = "/tmp/wheels"
    install = f"uv pip install --quiet --target {folder} --no-deps opencv-python soundfile cffi pycparser"
    program = (
        "import cv2, numpy, soundfile; soundfile.write('/tmp/wheels/a.flac', numpy.zeros(9), 8000); print(cv2.__file__)"
    )
    try:
        done = stack.execute("notebook", "sh", "-c", f'{install} && PYTHONPATH={folder} python -c "{program}"')
        assert folder in done.stdout
    finally:
        stack.execute("notebook", "rm", "-rf", folder)


def test_ctrl_c_leaves_waiting_job_submitted(stack: Stack, terminal: Terminal) -> None:
    job_id = f"waits-{uuid.uuid4().hex[:8]}"
    options = f"--submission-id {job_id} --entrypoint-num-gpus 2"
    terminal.press(f'ray job submit {options} --metadata-json \'{{"wait_for_capacity": "true"}}\' -- true\r')
    terminal.shown_until("submitted successfully")
    terminal.press("\x03")
    # The shell may discard what is typed before it has the terminal back.
    terminal.shown_until("Aborted!")
    terminal.typed("true")
    with stack.ray as gateway:
        try:
            assert gateway.get(f"/api/jobs/{job_id}").raise_for_status().json()["status"] == "PENDING"
            assert gateway.get(f"/platform/jobs/{job_id}").json()["attempts"] == [], "it holds resources of a node"
        finally:
            gateway.post(f"/api/jobs/{job_id}/stop").raise_for_status()


def test_tensorboard_is_reachable_through_jupyter_proxy(stack: Stack) -> None:
    """JupyterLab's proxy serves it, because the container's other ports are not published."""
    start = "tensorboard --logdir /tmp/curves >/tmp/tensorboard.log 2>&1 & echo $! >/tmp/tensorboard.pid"
    stack.execute("notebook", "sh", "-c", start)
    address = f"http://127.0.0.1:{stack.settings.notebook_port}/proxy/6006/"
    token = {"Authorization": f"token {stack.secret('notebook_token')}"}
    try:
        with httpx.Client(headers=token, trust_env=False, follow_redirects=True) as browser:
            wait_for(lambda: browser.get(address).is_success, "TensorBoard to answer", 60)
            assert "<title>TensorBoard</title>" in browser.get(address).text
            assert browser.get(f"{address}data/plugins_listing").json()
        assert httpx.get(address, trust_env=False).status_code in (302, 403), "reachable without the token"
    finally:
        stack.execute("notebook", "sh", "-c", "kill $(cat /tmp/tensorboard.pid); rm -r /tmp/tensorboard.*")


@pytest.mark.parametrize("call", ["ray.init('ray-head:6379')", "ray.data.range(3).take()"])
def test_ray_in_notebook_names_the_way_to_the_cluster(stack: Stack, call: str) -> None:
    done = stack.execute("notebook", "timeout", "60", "python", "-c", f"import ray, ray.data; {call}", check=False)
    assert done.returncode == 1, done
    assert "with `ray job submit " in done.stderr.splitlines()[-1]


def test_command_line_reaches_the_queue_from_jobs_only(stack: Stack, jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.submit("mlplatform jobs", tmp_path, name="lists")
    assert jobs.wait(job, timeout_s=120).status == "SUCCEEDED", jobs.logs(job)
    assert job in jobs.logs(job)
    outside = stack.execute("ray-worker-1", "mlplatform", "jobs", check=False)
    assert outside.returncode == 6
    assert "rejects the token (401" in outside.stderr


@pytest.mark.nightly
def test_first_tour_predicts_with_downloaded_model(stack: Stack) -> None:
    printed = stack.nbconvert(f"{WORK}/notebooks/first_tour.ipynb")
    assert "SUCCEEDED" in printed
    assert "epoch 3 {'val_accuracy': 0." in printed
    assert "image/png" in printed or "output_" in printed, "no plot"
    assert "predictions are correct" in printed
    with stack.mlflow as mlflow:
        staged = mlflow.get("/registered-models/alias", params={"name": "digits", "alias": "staging"}).json()
    assert staged["model_version"]["version"], "no model was promoted"


@pytest.mark.parametrize("notebook", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda notebook: notebook.stem)
def test_notebooks_are_stored_without_outputs(notebook: Path) -> None:
    cells = json.loads(notebook.read_text())["cells"]
    assert not [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")]


@pytest.mark.nightly
def test_mlflow_notebook_deploys_best_run_with_model(stack: Stack, food11: None) -> None:
    """Any lesson's run may be the best one, also a run whose network the lesson defines or that logged no model."""
    train = "python lightning_food.py --autolog --devices 1 --epochs 1 --size 32"
    # Otherwise MLflow imports torch again to infer the model's requirements.
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

    printed = stack.nbconvert(f"{WORK}/notebooks/mlflow_api.ipynb")

    with stack.mlflow as mlflow:
        found = mlflow.get("/model-versions/search", params={"filter": "name = 'food11-staging'"}).json()
    newest = max(found["model_versions"], key=lambda version: int(version["version"]))
    assert newest["run_id"] == best
    assert "READY" in printed
    assert printed.count("predicted: ") >= 8

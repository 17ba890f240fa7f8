"""MLflow's pages in a browser: the first visit, and what the guides click there."""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from browser import BOUND_S, Page
from host import ENV, Stack, Trained, wait_for

from mlplatform.secrets.credentials import read_mlflow_account

TWO_RUNS = """
import mlflow, sys

class Model(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input):
        return model_input

mlflow.set_experiment(sys.argv[1])
for rate in (0.1, 0.01):
    with mlflow.start_run(run_name=f"rate-{rate}", log_system_metrics=False):
        mlflow.log_params({"rate": rate, "epochs": 3})
        for step in range(3):
            mlflow.log_metrics({"loss": rate / (step + 1), "system/cpu_utilization_percentage": 10.0 * step}, step=step)
        if rate < 0.1:
            mlflow.pyfunc.log_model(name="model", python_model=Model(), pip_requirements=["torch==2.9"])
"""

POP_UPS = "[role=dialog], [role=alert], [data-component-id='mlflow.home.telemetry-alert']"

PANEL = "[data-component-id='mlflow.assistant.chat_panel.close'], [data-component-id^='mlflow.assistant.setup']"

LEGENDS = r"document.body.innerText.split('\n').filter(line => / \(.+\)$/.test(line))"
"""A chart's legend has a line of text per run, with the metric in parentheses."""


@dataclass
class Experiment:
    """Two runs that a terminal of the notebook has logged, and what it printed."""

    id: str
    name: str
    log: str
    runs: dict[str, dict[str, Any]]

    def run(self, name: str) -> str:
        return str(self.runs[name]["info"]["run_id"])


class MlflowPages:
    """MLflow in a browser that has not been there before, logged in."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address

    def open(self, path: str, text: str) -> None:
        """Open a page and wait for a text; a blank page comes first, because a new fragment alone loads nothing."""
        self.page.go("about:blank")
        self.page.go(f"{self.address}/#/{path}")
        self.page.wait_for_text(text, path)

    def count(self, selector: str) -> int:
        return int(self.page.evaluate(f"document.querySelectorAll({json.dumps(selector)}).length"))

    def shown_path(self) -> str:
        return str(self.page.evaluate("location.hash")).partition("?")[0]

    def chart_lines(self) -> set[str]:
        """Names of the lines of all charts; none before they are drawn, which is after their names appear."""
        drawn = self.count(".js-plotly-plot .scatterlayer .trace")
        return set(self.page.evaluate(LEGENDS)) if drawn else set()

    def chart_values(self) -> list[list[float]]:
        """Values of each line of the charts that are drawn."""
        lines = "[...document.querySelectorAll('.js-plotly-plot')].flatMap(plot => plot.data ?? [])"
        return list(self.page.evaluate(f"{lines}.map(line => Array.from(line.y ?? []))"))

    def picture(self, name: str) -> None:
        self.page.picture(f"mlflow-{name}")


@pytest.fixture
def mlflow(stack: Stack, page: Page) -> MlflowPages:
    page.resize(1280, 900)
    page.authenticate(*read_mlflow_account(stack.root / "secrets" / "mlflow_person"))
    return MlflowPages(page, f"http://mlflow.localhost:{stack.settings.mlflow_port}")


@pytest.fixture(scope="module")
def experiment(running: Stack) -> Iterator[Experiment]:
    name = f"pages-{uuid.uuid4().hex[:8]}"
    log = running.execute("notebook", "python", "-c", TWO_RUNS, name).stdout
    with running.mlflow as client:
        found = client.get("/experiments/get-by-name", params={"experiment_name": name}).json()["experiment"]
        experiment_id = found["experiment_id"]
        runs = client.post("/runs/search", json={"experiment_ids": [experiment_id]}).json()["runs"]
        yield Experiment(experiment_id, name, log, {run["info"]["run_name"]: run for run in runs})
    with running.mlflow as client:
        client.post("/experiments/delete", json={"experiment_id": experiment_id}).raise_for_status()


def test_first_visit_opens_on_runs_and_charts(mlflow: MlflowPages, experiment: Experiment) -> None:
    mlflow.open("", "Recent Experiments")
    mlflow.page.wait_for_text(experiment.name, "the experiment on the first page")
    assert "Information about UI telemetry" not in mlflow.page.text()
    mlflow.picture("home")
    mlflow.page.press_text(experiment.name, "a")
    for text in ("2 matching runs", "rate-0.1", "rate-0.01"):
        mlflow.page.wait_for_text(text, "the table of runs")
    assert mlflow.shown_path() == f"#/experiments/{experiment.id}/runs"
    assert mlflow.count(POP_UPS) == 0
    assert mlflow.count(PANEL) == 0
    mlflow.picture("runs")


def test_all_runs_are_charted_and_can_be_hidden(mlflow: MlflowPages, experiment: Experiment) -> None:
    mlflow.open(f"experiments/{experiment.id}", "2 matching runs")
    mlflow.page.press("document.querySelector('input[value=CHART]').closest('label')")
    lines = {f"{run} ({metric})" for run in experiment.runs for metric in ("loss", "system/cpu_utilization_percentage")}
    wait_for(lambda: lines <= mlflow.chart_lines(), "a line per run in each metric's chart", BOUND_S)
    mlflow.picture("charts")
    # The eye beside the latest run.
    mlflow.page.press("document.querySelector('.is-visibility-toggle-checkbox').closest('label')")
    left = {line for line in lines if "rate-0.1 " in line}
    wait_for(lambda: mlflow.chart_lines() & lines == left, "charts without a run", BOUND_S)
    mlflow.picture("hidden-run")


def test_choice_of_genai_pages_is_kept(mlflow: MlflowPages, experiment: Experiment) -> None:
    mlflow.open(f"experiments/{experiment.id}", "2 matching runs")
    mlflow.page.press_text("GenAI")
    mlflow.page.wait_for_text("Agent versions", "the pages about GenAI")
    mlflow.open(f"experiments/{experiment.id}", "Agent versions")
    overview = f"#/experiments/{experiment.id}/overview/usage"
    wait_for(lambda: mlflow.shown_path() == overview, "the overview of GenAI", BOUND_S)
    assert mlflow.count(POP_UPS) == 0
    mlflow.picture("genai")


def test_printed_links_open_runs_created_by_person(
    stack: Stack, mlflow: MlflowPages, experiment: Experiment, trained: Trained
) -> None:
    for log in (experiment.log, trained.log):
        assert "http://mlflow:8000" not in log
        links = re.findall(r"View run .* at: (\S+)", log)
        assert links
        address, _, path = links[0].partition("/#/")
        assert address == mlflow.address
        mlflow.open(path, "About this run")
        assert f"Created by\n{ENV['NOTEBOOK_USER']}\n" in mlflow.page.text()
        mlflow.picture("run")
    (job,) = {run["info"]["run_id"] for run in stack.runs_of(trained.id)}
    assert f"{mlflow.address}/#/experiments" in trained.log
    assert job in trained.log


@pytest.mark.nightly
def test_run_fills_while_it_trains(stack: Stack, mlflow: MlflowPages, experiment: Experiment) -> None:
    with stack.mlflow as client:
        begin = {"experiment_id": experiment.id, "run_name": "open", "start_time": time.time_ns() // 1_000_000}
        run_id = client.post("/runs/create", json=begin).json()["run"]["info"]["run_id"]
        logged: list[float] = []

        def log(value: float) -> None:
            point = {"run_id": run_id, "key": "accuracy", "value": value, "step": len(logged)}
            now = time.time_ns() // 1_000_000
            client.post("/runs/log-metric", json={**point, "timestamp": now}).raise_for_status()
            logged.append(value)

        try:
            for value in (0.25, 0.875):
                log(value)
                mlflow.open(f"experiments/{experiment.id}/runs/{run_id}", "Running")
                mlflow.page.wait_for_text(str(value), "the latest value of a metric")
            mlflow.page.press_text("Model metrics")
            wait_for(lambda: logged in mlflow.chart_values(), "a chart of both values", BOUND_S)
            for value in (0.9375, 0.96875):
                log(value)
                # Nothing is opened or pressed: the page asks for new values every 30 s while the run is open.
                wait_for(lambda: logged in mlflow.chart_values(), f"{value} in the chart of the open page", 90)
            mlflow.picture("run-while-it-trains")
        finally:
            client.post("/runs/delete", json={"run_id": run_id}).raise_for_status()


def test_system_metrics_have_page_of_their_own(mlflow: MlflowPages, experiment: Experiment) -> None:
    mlflow.open(f"experiments/{experiment.id}/runs/{experiment.run('rate-0.1')}", "About this run")
    mlflow.page.press_text("System metrics")
    line = "rate-0.1 (system/cpu_utilization_percentage)"
    wait_for(lambda: mlflow.chart_lines() == {line}, "the chart of a system metric alone", BOUND_S)
    mlflow.picture("system-metrics")


def test_description_is_edited_and_shown_as_column(mlflow: MlflowPages, experiment: Experiment) -> None:
    mlflow.open(f"experiments/{experiment.id}/runs/{experiment.run('rate-0.1')}", "No description")
    mlflow.page.click("[aria-label='Edit description']")
    mlflow.page.press("document.querySelector('textarea')")
    mlflow.page.type("The baseline")
    mlflow.page.press_text("Save", "button")
    wait_for(lambda: "The baseline" in mlflow.page.text() and not mlflow.count("textarea"), "the description", BOUND_S)
    mlflow.open(f"experiments/{experiment.id}", "2 matching runs")
    assert "The baseline" not in mlflow.page.text()
    mlflow.page.press_text("Columns", "button")
    mlflow.page.press_text("Description")
    mlflow.page.wait_for_text("The baseline", "the column")
    mlflow.picture("description")


def test_comparison_marks_changed_parameter(mlflow: MlflowPages, experiment: Experiment) -> None:
    mlflow.open(f"experiments/{experiment.id}", "2 matching runs")
    for name in experiment.runs:
        row = f"[...document.querySelectorAll('[role=row]')].find(row => row.innerText.includes({json.dumps(name)}))"
        mlflow.page.press(f"{row}?.querySelector('input[type=checkbox]')")
    mlflow.page.press_text("Compare", "button")
    mlflow.page.wait_for_text("Comparing 2 Runs", "the comparison")
    wait_for(lambda: mlflow.count(".diff-row"), "a marked parameter", BOUND_S)
    marked = mlflow.page.evaluate("[...document.querySelectorAll('.diff-row')].map(row => row.innerText.split(/\\s+/))")
    assert [sorted(row) for row in marked] == [["0.01", "0.1", "rate"]]
    # The table of metrics has a grid with their names, and one with the values of both runs.
    grids = "[...document.querySelectorAll('.ReactVirtualized__Grid__innerScrollContainer')]"
    cells = f"{grids}.map(grid => [...grid.children].map(cell => cell.innerText.trim()))"
    wait_for(lambda: [bool(grid) for grid in mlflow.page.evaluate(cells)] == [True, True], "the metrics", BOUND_S)
    names, values = mlflow.page.evaluate(cells)
    place = 2 * names.index("loss")
    # A third of each rate, as MLflow rounds it.
    assert sorted(values[place : place + 2]) == ["0.003", "0.033"], (names, values)
    for part in ("epochs", "Artifacts"):
        assert part in mlflow.page.text()
    mlflow.picture("comparison")


def test_logged_model_shows_details_and_is_registered(
    stack: Stack, mlflow: MlflowPages, experiment: Experiment
) -> None:
    mlflow.open(f"experiments/{experiment.id}", "2 matching runs")
    # Not pressed, because the link opens another tab.
    link = "[...document.querySelectorAll('a')].find(link => link.innerText == 'model')?.hash"
    path = wait_for(lambda: mlflow.page.evaluate(link), "the logged model among the runs", BOUND_S)
    mlflow.open(path.removeprefix("#/"), "About this logged model")
    assert re.search(r"Created at\n.+\nCreated by\nada\n", mlflow.page.text())
    mlflow.page.press_text("Artifacts")
    mlflow.page.press_text("requirements.txt")
    mlflow.page.wait_for_text("torch==2.9", "the model's dependencies")
    assert re.search(r"requirements.txt\n\d+B\n", mlflow.page.text()), "no size"
    mlflow.picture("model")
    mlflow.page.press_text("Register model")
    mlflow.page.press("document.querySelector('#selectedModel')")
    mlflow.page.press_text("Create New Model")
    mlflow.page.press("document.querySelector('#modelName')")
    mlflow.page.type(experiment.name)
    mlflow.page.press_text("Register", "button")
    mlflow.page.wait_for_text("Model registered successfully", "the registration")
    with stack.mlflow as client:
        named = {"name": experiment.name}
        assert client.get("/registered-models/get", params=named).json()["registered_model"]["latest_versions"]
        client.request("DELETE", "/registered-models/delete", json=named).raise_for_status()

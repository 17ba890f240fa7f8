"""The notebooks of `jobs/notebooks`, executed where a person opens them."""

from __future__ import annotations

from host import Stack

WORK = "/home/jovyan/work"


def execute(stack: Stack, name: str) -> str:
    """Run a copy of a notebook in its folder, without a screen, and return it with what the cells gave, as Markdown."""
    nbconvert = "jupyter nbconvert --to markdown --execute --stdout"
    return stack.execute("notebook", "sh", "-c", f"cd {WORK}/notebooks && {nbconvert} {name}").stdout


def test_first_tour_ends_with_predictions_of_the_downloaded_model(stack: Stack) -> None:
    printed = execute(stack, "first_tour.ipynb")
    assert "SUCCEEDED" in printed
    assert "epoch 3 {'val_accuracy': 0." in printed
    assert "image/png" in printed or "output_" in printed, "the plot"
    assert "digits are right" in printed


def test_mlflow_notebook_registers_the_best_run_and_predicts(stack: Stack, food11: None) -> None:
    stack.execute("notebook", "sh", "-c", f"cd {WORK}/food11 && python tracked.py --epochs 1 --size 32")
    printed = execute(stack, "mlflow_api.ipynb")
    names = {model["name"] for model in stack.mlflow.get("/registered-models/search").json()["registered_models"]}
    assert "food11-staging" in names
    assert "READY" in printed

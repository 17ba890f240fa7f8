import pickle

import numpy as np
import pytest

from mlplatform.training import MetricWriter, Point, ReportCallback, last_steps, not_yet_sent, numbers, step_of


@pytest.mark.parametrize(
    ("values", "step"), [({"step": 40, "epoch": 2}, 40), ({"epoch": 2}, 2), ({"loss": 1}, 7), ({}, 7)]
)
def test_a_report_is_plotted_at_its_step_else_epoch_else_count(values: dict[str, float], step: int) -> None:
    assert step_of(values, reports=7) == step


def test_only_numbers_are_tracked() -> None:
    reported = {"loss": 0.5, "epoch": 1, "f32": np.float32(2), "name": "a", "done": True, "list": [1]}
    assert numbers(reported) == {"loss": 0.5, "epoch": 1.0, "f32": 2.0}


def test_a_replayed_step_makes_no_second_point() -> None:
    first, second, replayed, third = (Point("loss", step / 10, step, step) for step in (1, 2, 2, 3))
    sent: dict[str, int] = {}
    assert not_yet_sent([first, second], sent) == [first, second]
    assert not_yet_sent([replayed, third], sent) == [third]
    assert not_yet_sent([Point("accuracy", 0.5, 1, 9)], sent) == [Point("accuracy", 0.5, 1, 9)]


def test_a_later_attempt_knows_the_steps_of_its_run() -> None:
    from mlflow.entities import Metric

    assert last_steps([Metric("loss", 0.5, 1, 40), Metric("accuracy", 0.9, 1, 38)]) == {"loss": 40, "accuracy": 38}


def test_a_writer_travels_to_another_process_without_queue_and_thread() -> None:
    writer = MetricWriter("run", "http://127.0.0.1:9")
    assert pickle.loads(pickle.dumps(writer)).__dict__.keys() == writer.__dict__.keys()  # noqa: S301 - our own bytes


def test_each_report_of_rank_0_is_one_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    callback = ReportCallback("fit", None)
    callback.after_report(None, [{"loss": 0.5}, {"loss": 9.0}], None)
    callback.after_report(None, [{"loss": 0.25}, {"loss": 9.0}], None)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        'mlplatform report {"run": "fit", "loss": 0.5, "step": 0}',
        'mlplatform report {"run": "fit", "loss": 0.25, "step": 1}',
    ]


def test_a_report_that_cannot_be_tracked_does_not_end_the_training(caplog: pytest.LogCaptureFixture) -> None:
    ReportCallback("fit", None).after_report(None, [], None)
    assert "training goes on" in caplog.text

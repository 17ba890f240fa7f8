import pickle

import pytest

from mlplatform.metrics import MetricWriter, Point, not_yet_sent, valid_name


def test_a_replayed_step_makes_no_second_point() -> None:
    first, second, replayed, third = (Point("loss", step / 10, step, step) for step in (1, 2, 2, 3))
    sent: dict[str, int] = {}
    assert not_yet_sent([first, second], sent) == [first, second]
    assert not_yet_sent([replayed, third], sent) == [third]
    assert not_yet_sent([Point("accuracy", 0.5, 1, 9)], sent) == [Point("accuracy", 0.5, 1, 9)]


def test_a_writer_travels_to_another_process_without_queue_and_thread() -> None:
    writer = MetricWriter("run", "http://127.0.0.1:9")
    assert pickle.loads(pickle.dumps(writer)).__dict__.keys() == writer.__dict__.keys()  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("val/loss", "val/loss"),
        ("loss[train]", "loss_train_"),
        ("größe", "gr__e"),
        ("/top/", "top"),
        ("", "_"),
        ("x" * 300, "x" * 250),
    ],
)
def test_a_name_that_mlflow_refuses_becomes_the_nearest_that_it_takes(asked: str, given: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    assert valid_name(asked) == given
    _validate_metric_name(given)

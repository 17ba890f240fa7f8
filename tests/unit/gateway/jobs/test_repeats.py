"""Jobs that repeat another: what they keep, and commands with other arguments."""

import pytest
from stored import add, begin, do, submitted

from mlplatform.errors import JobError
from mlplatform_gateway.jobs.repeats import repetition, with_arguments
from mlplatform_gateway.jobs.states import State
from mlplatform_gateway.jobs.store import JobStore


@pytest.mark.parametrize(
    ("command", "begin"),
    [
        ("python train.py", "python train.py"),
        ("python train.py --lr 0.1 --name 'two words'", "python train.py"),
        ("cd food && SEED=1 python -u train.py --lr 0.1", "cd food && SEED=1 python -u train.py"),
        ("torchrun --nproc-per-node 2 train.py --lr 0.1", "torchrun --nproc-per-node 2 train.py"),
        ("python -m torch.distributed.run train.py --lr 1", "python -m torch.distributed.run train.py"),
        ("python -m food.train --lr 0.1", "python -m food.train"),
        ("python -m food.train --conf c.py", "python -m food.train"),
        ("torchrun --nproc-per-node 2 -m food.train --conf c.py", "torchrun --nproc-per-node 2 -m food.train"),
        ("python -m torch.distributed.run -m food.train 1", "python -m torch.distributed.run -m food.train"),
        ("bash run.sh again.sh", "bash run.sh"),
    ],
)
def test_arguments_of_script_or_module_are_replaced(command: str, begin: str) -> None:
    assert with_arguments(command, ["--lr", "1e-4", "a b"]) == f"{begin} --lr 1e-4 'a b'"
    assert with_arguments(command, []) == command


@pytest.mark.parametrize(
    "command",
    [
        *(
            "true",
            "./train --lr 1",
            "python a.py --x && python b.py",
            "python a.py | tee log",
            "bash -c 'python a.py 1'",
        ),
        *("(python a.py 1)", "echo `python a.py 1`", "echo $(python a.py 1)"),
    ],
)
def test_other_commands_have_no_arguments_to_replace(command: str) -> None:
    with pytest.raises(JobError, match="cannot be replaced, because it is not one command"):
        with_arguments(command, ["--lr", "1"])


def test_repetition_keeps_what_the_job_needs(store: JobStore) -> None:
    job = submitted(
        submission_id="train-20261130-190000-ab12",
        runtime_env={"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"},
        entrypoint_num_gpus=1.0,
        metadata={
            "time_limit": "4h",
            "class": "idle",
            "note": "mine",
            "entrypoint": "old",
            "group": "g",
            "at_most": "2",
        },
    )
    do(store.add(job))
    begin(store, job.id)
    again = repetition(do(store.get(job.id)), entrypoint="python b.py")
    do(store.add(again))
    stored = do(store.get(again.id))
    assert (stored.state, stored.origin, stored.entrypoint) == (State.WAITING, job.id, "python b.py")
    for column in ("runtime_env", "entrypoint_request", "limit_s", "job_class", "group_name", "at_most", "workers"):
        assert getattr(stored, column) == getattr(job, column)
    assert stored.job_metadata["note"] == "mine"
    assert "entrypoint" not in stored.job_metadata
    assert stored.attempts == []
    assert stored.id.startswith("train-2"), "one time in the id is enough"
    assert len(stored.id) == len(job.id)


def test_repetition_of_held_job_waits_for_none(store: JobStore) -> None:
    add(store, "a")
    add(store, "b", **{"mlplatform.after": "a"})
    again = repetition(do(store.get("b")))
    do(store.add(again))
    assert do(store.get(again.id)).state == State.WAITING


def test_link_to_deleted_job_is_never_one_to_another(store: JobStore) -> None:
    add(store, "a")
    again = repetition(do(store.get("a")))
    do(store.add(again))
    do(store.request_stop("a"))
    sequence = do(store.delete("a")).sequence
    add(store, "a")
    assert do(store.get(again.id)).origin == f"a~{sequence}"

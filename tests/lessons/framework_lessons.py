"""Checks of the lessons in `jobs/frameworks`."""

from __future__ import annotations

from lesson import Left, Lesson


def transformers_resumed(left: Left) -> None:
    printed = left.printed("Trained")
    steps = list(range(5, printed["steps"] + 1, 5))
    assert "Killing this worker at step" in left.log, "a worker was killed"
    # The report of the last epoch before may have been on its way.
    assert printed["first_step"] in steps[:2], "the Trainer resumed from a checkpoint"
    assert printed["last_step"] == printed["steps"], "it trained to the end"
    assert len(left.runs) == 1, "the Trainer did not open a second run"
    assert left.run.info.status == "FINISHED"
    losses = left.points("eval_loss")
    assert [step for step, _ in losses] == steps, "each epoch reported once, by its step"
    assert losses[-1][1] < losses[0][1] < 6.4, "it learned from the text: 6.4 is the loss of guessing among 600 tokens"
    names = {path.rpartition("/")[2] for path in left.stored}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= names, "a complete checkpoint is in storage"
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= names, "the checkpoint contains the files of each rank"
    assert any(line.startswith("Text: The keeper of the") for line in left.lines), "the checkpoint generated text"


def accelerate_applied(left: Left) -> None:
    printed = left.printed("Trained")
    (ignored,) = [line for line in left.lines if "accelerate.yaml: ignored " in line]
    for given in ("main_process_ip=10.0.0.7", "main_process_port=29511", "machine_rank=1", "num_processes=16"):
        assert given in ignored, "the log lists the ignored settings"
    assert printed["kind"] == "FSDP", "the file's distributed type was applied"
    assert printed["held"] * 2 == printed["weights"], "each of two workers holds half of the weights"
    assert "Rank 1 of 2: FSDP" in left.log, "the file was applied on every worker"
    # The report of the last epoch before may have been on its way.
    assert printed["first_epoch"] in (1, 2), "it resumed from a checkpoint"
    assert printed["val_accuracy"] > 0.5, "it learned"
    assert [step for step, _ in left.points("val_accuracy")] == [0, 1, 2, 3], "each epoch is tracked once"
    assert len(left.runs) == 1
    shares = {path.rpartition("/")[2] for path in left.stored if "pytorch_model_fsdp_0" in path}
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata"} <= shares, "the checkpoint contains both workers' shards"


def tensorflow_mirrored(left: Left) -> None:
    printed = left.printed("Trained")
    assert printed["workers"] == printed["replicas"] == 2, "the strategy found both workers"
    for rank in (0, 1):
        assert f"Rank {rank}: TF_CONFIG index {rank} of 2" in left.log, "TF_CONFIG has each worker's index"
    assert [step for step, _ in left.points("val_accuracy")] == [0, 1], "each epoch is tracked once"
    assert left.points("replicas") == [(0, 2)], "MLflow's own call in the function was recorded once, by rank 0"
    assert printed["val_accuracy"] > 0.5, "it learned"
    assert any(path.endswith("/model.keras") for path in left.stored), "its checkpoint is in storage"


LESSONS = [
    Lesson(
        "frameworks/transformers_text.py",
        "Transformers' Trainer reads Ray Data, is tracked in the job's run and resumes after a worker was killed.",
        transformers_resumed,
        ["--epochs=3", "--die-at-step=12"],
    ),
    Lesson(
        "frameworks/accelerate_fsdp.py",
        "Accelerate applies its configuration file on every worker, but ignores its settings for machines and ports.",
        accelerate_applied,
        ["--epochs=4", "--die-at-epoch=2"],
    ),
    # Takes a minute: TensorFlow and what it needs are downloaded for this job.
    Lesson(
        "frameworks/tensorflow_mirrored.py",
        "TensorFlow trains with its own strategy, using packages installed for the job.",
        tensorflow_mirrored,
        ["--epochs=2"],
        options={"pip": ["tensorflow==2.21.0", "tf_keras==2.21.0"], "env": {"TF_USE_LEGACY_KERAS": "1"}},
        stack_only=True,
    ),
]

"""What the lessons of `jobs/frameworks` have to leave behind."""

from __future__ import annotations

from lesson import Left, Lesson


def transformers_resumed(left: Left) -> None:
    said = left.said("Trained")
    steps = list(range(5, said["steps"] + 1, 5))
    assert "Killing this worker at step" in left.log, "a worker was killed"
    # The report of the last epoch before may have been on its way.
    assert said["first_step"] in steps[:2], "the Trainer went on from a checkpoint"
    assert said["last_step"] == said["steps"], "it trained to the end"
    assert len(left.runs) == 1, "the Trainer opened no run of its own"
    assert left.run.info.status == "FINISHED"
    losses = left.points("eval_loss")
    assert [step for step, _ in losses] == steps, "each epoch reported once, by its step"
    assert losses[-1][1] < losses[0][1] < 6.4, "it learnt from the text: 6.4 is the loss of a guess among 600"
    names = {path.rpartition("/")[2] for path in left.stored}
    assert {"model.safetensors", "optimizer.pt", "trainer_state.json"} <= names, "a whole checkpoint is in storage"
    assert {"rng_state_0.pth", "rng_state_1.pth"} <= names, "the checkpoint holds what each rank saved"
    assert any(line.startswith("Text: The keeper of the") for line in left.lines), "the checkpoint was used to write"


def accelerate_applied(left: Left) -> None:
    said = left.said("Trained")
    (gone,) = [line for line in left.lines if "accelerate.yaml: ignored " in line]
    for given in ("main_process_ip=10.0.0.7", "main_process_port=29511", "machine_rank=1", "num_processes=16"):
        assert given in gone, "the log says what of the file gave way"
    assert said["kind"] == "FSDP", "the file's kind of training was applied"
    assert said["held"] * 2 == said["weights"], "each of two workers holds half of the weights"
    assert "Rank 1 of 2: FSDP" in left.log, "the file was applied on every worker"
    # The report of the last epoch before may have been on its way.
    assert said["first_epoch"] in (1, 2), "it went on from a checkpoint"
    assert said["val_accuracy"] > 0.5, "it learnt"
    assert [step for step, _ in left.points("val_accuracy")] == [0, 1, 2, 3], "each epoch is tracked once"
    assert len(left.runs) == 1
    shares = {path.rpartition("/")[2] for path in left.stored if "pytorch_model_fsdp_0" in path}
    assert {"__0_0.distcp", "__1_0.distcp", ".metadata"} <= shares, "the checkpoint holds both workers' shares"


def tensorflow_mirrored(left: Left) -> None:
    said = left.said("Trained")
    assert said["workers"] == said["replicas"] == 2, "the strategy found both workers"
    for rank in (0, 1):
        assert f"Rank {rank}: TF_CONFIG index {rank} of 2" in left.log, "TF_CONFIG says each worker's place"
    assert [step for step, _ in left.points("val_accuracy")] == [0, 1], "each epoch is tracked once"
    assert said["val_accuracy"] > 0.5, "it learnt"
    assert any(path.endswith("/model.keras") for path in left.stored), "its checkpoint is in storage"


LESSONS = [
    Lesson(
        "frameworks/transformers_text.py",
        "Transformers' Trainer reads Ray Data, is tracked in the job's run and goes on after a worker was killed",
        transformers_resumed,
        ["--epochs=3", "--die-at-step=12"],
        long=True,
    ),
    Lesson(
        "frameworks/accelerate_fsdp.py",
        "Accelerate takes its configuration file on every worker; what it says of machines and ports gives way",
        accelerate_applied,
        ["--epochs=4", "--die-at-epoch=2"],
        long=True,
    ),
    # Minutes: Ray clones the image's packages, to add TensorFlow for this job.
    Lesson(
        "frameworks/tensorflow_mirrored.py",
        "TensorFlow trains by its own strategy on packages that the job brings itself",
        tensorflow_mirrored,
        ["--epochs=2"],
        options={"pip": ["tensorflow==2.21.0", "tf_keras==2.21.0"], "env": {"TF_USE_LEGACY_KERAS": "1"}},
        stack_only=True,
        long=True,
    ),
]

"""Train as in `plain.py`, and record every metric, file and model with MLflow.

    python food11/tracked.py --epochs 2                        in a terminal, without Ray; stop it with Ctrl-C
    mlplatform submit food11/tracked.py -- --epochs 2          the same as a job

The lesson: manual tracking takes a few `mlflow` calls around the same loop, without an address or a password. The run
records parameters, metrics per epoch, system metrics, the GPU report, a note, and a model whenever validation improves.
It also records the commit if this folder is in a git repository (JupyterLab's `~/work` is not one until you make it
one). A run stopped by Ctrl-C or `mlplatform stop` ends as KILLED, so no run stays open. (`mlplatform.job_run`, used in
`digits.py`, does most of this in one line and continues across restarts.)
"""

import shutil
import signal
import subprocess

import food
import mlflow
import plain
import torch

EXPERIMENT = "food11-classifier"


def gpu_info() -> str:
    """Output of nvidia-smi or rocm-smi."""
    for tool in ("nvidia-smi", "rocm-smi"):
        if program := shutil.which(tool):
            return subprocess.run([program], capture_output=True, text=True, check=False).stdout
    return "No GPU: neither nvidia-smi nor rocm-smi was found.\n"


def train(net: torch.nn.Module, args) -> None:
    mlflow.log_params(vars(args))
    mlflow.log_text(gpu_info(), "gpu-info.txt")

    best, model_uri = float("inf"), None
    for epoch, measured in plain.epochs(net, args):
        mlflow.log_metrics(measured, step=epoch)
        # Models from before the backbone is trained are not worth storing.
        if epoch >= args.head_epochs and measured["val_loss"] < best:
            best = measured["val_loss"]
            model_uri = mlflow.pytorch.log_model(net, "food11").model_uri
            print(f"New best model: {model_uri}", flush=True)

    # Test what others will get: the best model, loaded back from MLflow.
    if model_uri:
        net = mlflow.pytorch.load_model(model_uri, map_location=plain.DEVICE)
    loss, accuracy = plain.passed(net, plain.loader("evaluation", args))
    mlflow.log_metrics({"test_loss": loss, "test_accuracy": accuracy})
    print(f"Test accuracy: {accuracy:.4f}")


def main() -> None:
    args = plain.arguments(__doc__)
    torch.manual_seed(args.seed)
    net = food.network(args.pretrained).to(plain.DEVICE)

    # SIGTERM, which stops a job, is handled like Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    mlflow.set_experiment(EXPERIMENT)
    # Sample system metrics every second: MLflow's default of ten suits training that takes hours.
    mlflow.set_system_metrics_sampling_interval(1)
    # In a notebook kernel, the run of an interrupted cell may still be open, which prevents starting another.
    mlflow.end_run()
    run = mlflow.start_run(log_system_metrics=True)
    # MLflow shows this tag as the run's description, and it can be edited there.
    mlflow.set_tag("mlflow.note.content", f"Tracked manually: {args.num_workers} loader processes, {args.size} pixels.")
    print(f"Run: {run.info.run_name} ({run.info.run_id})", flush=True)
    try:
        train(net, args)
    except KeyboardInterrupt:
        mlflow.end_run("KILLED")
        raise SystemExit("Stopped: its run is KILLED and keeps the metrics logged so far.") from None
    except BaseException:
        mlflow.end_run("FAILED")
        raise
    mlflow.end_run()


if __name__ == "__main__":
    main()

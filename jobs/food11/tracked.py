"""The training of `plain.py`, with every number, file and model of it kept by MLflow.

    python food11/tracked.py --epochs 2                        in a terminal, without Ray; Ctrl-C ends it
    mlplatform submit food11/tracked.py -- --epochs 2          the same as a job

The lesson: tracking by hand is a few calls of `mlflow` around the same loop, with no address and no password in them.
The run has parameters, metrics of each epoch, metrics of the machine, the GPUs' report, a note, and a model whenever
validation improves; also the commit, where this folder is in a git repository (`~/work` of JupyterLab is none until you
make it one). A run that Ctrl-C or `mlplatform stop` ends says KILLED, so nothing is left open.
(The platform's own `mlplatform.job_run`, in `digits.py`, does most of it in one line, and outlives restarts.)
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
    """What the GPUs' own tool says."""
    for tool in ("nvidia-smi", "rocm-smi"):
        if program := shutil.which(tool):
            return subprocess.run([program], capture_output=True, text=True, check=False).stdout
    return "no GPU here: neither nvidia-smi nor rocm-smi was found\n"


def train(net: torch.nn.Module, args) -> None:
    mlflow.log_params(vars(args))
    mlflow.log_text(gpu_info(), "gpu-info.txt")

    best, model_uri = float("inf"), None
    for epoch, measured in plain.epochs(net, args):
        mlflow.log_metrics(measured, step=epoch)
        # Models of the first epochs, with a backbone that was not trained, are not worth their space.
        if epoch >= args.head_epochs and measured["val_loss"] < best:
            best = measured["val_loss"]
            model_uri = mlflow.pytorch.log_model(net, "food11").model_uri
            print(f"Better than before; model: {model_uri}", flush=True)

    # What is tested is what others will get: the best model as MLflow gives it back.
    if model_uri:
        net = mlflow.pytorch.load_model(model_uri, map_location=plain.DEVICE)
    loss, accuracy = plain.passed(net, plain.loader("evaluation", args))
    mlflow.log_metrics({"test_loss": loss, "test_accuracy": accuracy})
    print(f"Test accuracy: {accuracy:.4f}")


def main() -> None:
    args = plain.arguments(__doc__)
    torch.manual_seed(args.seed)
    net = food.network(args.pretrained).to(plain.DEVICE)

    # What stops a job counts as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    mlflow.set_experiment(EXPERIMENT)
    # A look at the machine each second: MLflow's own pace of ten is for trainings of hours.
    mlflow.set_system_metrics_sampling_interval(1)
    # In a notebook's kernel the run of a cell that was interrupted may still be open, and would refuse a second one.
    mlflow.end_run()
    run = mlflow.start_run(log_system_metrics=True)
    # Shown as the run's description, where it can also be edited.
    mlflow.set_tag("mlflow.note.content", f"By hand: {args.num_workers} loader processes, {args.size} pixels.")
    print(f"Run: {run.info.run_name} ({run.info.run_id})", flush=True)
    try:
        train(net, args)
    except KeyboardInterrupt:
        mlflow.end_run("KILLED")
        raise SystemExit("Stopped; its run is KILLED, and keeps what was measured until here.") from None
    except BaseException:
        mlflow.end_run("FAILED")
        raise
    mlflow.end_run()


if __name__ == "__main__":
    main()

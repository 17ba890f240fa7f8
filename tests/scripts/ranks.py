"""Log from each rank of a torchrun; every rank except the first then fails."""

import signal

import mlflow
import torch.distributed as dist

import mlplatform

dist.init_process_group("gloo")
rank = dist.get_rank()
with mlplatform.job_run(experiment="ranks", params={"lr": 0.1}) as run:
    mlflow.log_metric("rank", rank)
    mlflow.log_text("text", "file.txt")
    print(f"rank {rank} has logged to {mlflow.get_tracking_uri()}", flush=True)
    dist.barrier()
    if rank:
        raise ValueError(f"rank {rank} has lost its data")
    # Wait until torchrun ends this rank because of the other's failure.
    signal.pause()

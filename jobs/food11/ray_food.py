"""Train the Lightning network of Food-11 with Ray Train, on any number of workers.

    mlplatform submit food11/ray_food.py -- --workers 2 --gpus-per-worker 1
    ray job submit --working-dir food11 -- python ray_food.py --workers 2 --gpus-per-worker 1

The lesson: the script requests its workers itself, so nothing is reserved at submission. A fraction such as
`--gpus-per-worker 0.5` puts two jobs on one GPU; Ray counts the fractions but does not enforce them. Each epoch ends
with a checkpoint in storage, and a node that is about to stop triggers one more. Stop the node of a worker, and the
training resumes on another node from the latest checkpoint.
"""

import json
import socket

import ray
import torch
from lightning_food import STRATEGY, Food, loader, options, trainer
from ray.train import ScalingConfig
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, RayTrainReportCallback, prepare_trainer
from ray.train.torch import TorchConfig, TorchTrainer

import mlplatform


def resources() -> list[dict]:
    """Node and assigned resources of each worker, in rank order."""
    mine = {"node": socket.gethostname(), **ray.get_runtime_context().get_assigned_resources()}
    all_ranks: list[dict] = [{}] * ray.train.get_context().get_world_size()
    torch.distributed.all_gather_object(all_ranks, mine)
    return all_ranks


def train(config: dict) -> None:
    """Training function that runs on each worker: the same network and callbacks, with Ray's strategy and report."""
    first = ray.train.get_context().get_world_rank() == 0
    used = resources()
    if first:
        print(f"Resources: {json.dumps(used)}", flush=True)

    torch.manual_seed(config["seed"])
    fitting = prepare_trainer(
        trainer(
            config,
            RayTrainReportCallback(),
            mlplatform.PreemptionCheckpoint(),
            accelerator="auto",
            devices="auto",
            strategy=RayDDPStrategy(**STRATEGY),
            plugins=[RayLightningEnvironment()],
        )
    )
    model = Food(config["lr"], config["dropout"], config["pretrained"])
    loaders = loader("training", config), loader("validation", config)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint and first:
        print(f"Restored from checkpoint: {checkpoint.path} on {socket.gethostname()}", flush=True)
    with mlplatform.resume_path(checkpoint, RayTrainReportCallback.CHECKPOINT_NAME) as path:
        fitting.fit(model, *loaders, ckpt_path=path)


def main() -> None:
    parser = options()
    parser.description = __doc__
    parser.add_argument("--workers", type=int, default=1, help="training processes")
    parser.add_argument("--cpus-per-worker", type=float, default=1, help="CPUs reserved per worker")
    parser.add_argument("--gpus-per-worker", type=float, default=0, help="GPUs per worker; 0.5 lets two share one")
    parser.add_argument("--backend", choices=["nccl", "gloo"], help="process group backend; nccl with GPUs, else gloo")
    args = parser.parse_args()

    with mlplatform.job_run(experiment="food11-classifier", params=vars(args)) as run:
        result = TorchTrainer(
            train,
            train_loop_config=vars(args),
            torch_config=TorchConfig(backend=args.backend),
            scaling_config=ScalingConfig(
                num_workers=args.workers,
                use_gpu=args.gpus_per_worker > 0,
                resources_per_worker={"CPU": args.cpus_per_worker, "GPU": args.gpus_per_worker},
            ),
            run_config=mlplatform.run_config("fit", metric="val_accuracy"),
        ).fit()
        print(f"Last report: {json.dumps(result.metrics)}")
        print(f"Checkpoint: {result.checkpoint.path}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()

"""Request more CPUs from Ray than any node has, with a task or a training group, undeclared at submission."""

import sys

import ray
from ray.train import ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

CPUS = 1000


def never(*_: object) -> None:
    raise AssertionError(f"a node has {CPUS} CPUs")


def by_task() -> None:
    ray.get(ray.remote(num_cpus=CPUS)(never).remote())


def by_training() -> None:
    DataParallelTrainer(never, scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": CPUS})).fit()


{"task": by_task, "training": by_training}[sys.argv[1]]()

"""Give Ray Train a backend of your own: what the workers need before the training function starts.

    mlplatform submit train/backend.py -- --workers 2
    ray job submit --working-dir train -- python backend.py --workers 2

The lesson: `TorchTrainer` is a `DataParallelTrainer` whose backend makes torch's process group. A backend is two
classes: a configuration, and hooks that Ray Train's controller calls around the training function, with the group of
workers at hand. The one below lets the workers find each other, and they add up numbers over a socket, without torch.
"""

import argparse
import json
import os
import secrets
import socket
import time
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener

import ray.train
from ray.train import BackendConfig, ScalingConfig
from ray.train.backend import Backend

# Of Ray Train V2, which is the one that runs; the one in `ray.train.data_parallel_trainer` is of V1.
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import mlplatform


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes that add up together")
    parser.add_argument("--epochs", type=int, default=3, help="times that they do")
    return parser.parse_args()


@dataclass
class SumConfig(BackendConfig):
    """What a user of the backend may choose."""

    timeout_s: float = 30.0
    """How long the workers wait for the first of them."""

    @property
    def backend_cls(self) -> type[Backend]:
        return SumBackend


class SumBackend(Backend):
    """The controller's side; what it sends to the workers runs in their processes."""

    def on_start(self, worker_group, backend_config: SumConfig) -> None:
        """The workers are up: all get the address of the first, a key, and the time that they may wait."""
        host, port = worker_group.execute_single(0, free_address)
        together = {
            "SUM_HOST": host,
            "SUM_PORT": str(port),
            "SUM_KEY": secrets.token_hex(),
            "SUM_TIMEOUT_S": str(backend_config.timeout_s),
        }
        worker_group.execute(set_variables, together)
        print(f"Backend started for {len(worker_group)} workers.")

    def on_training_start(self, worker_group, backend_config: SumConfig) -> None:
        """The training context is there now, so that workers know their ranks."""
        print(f"Backend sees ranks: {json.dumps(worker_group.execute(rank))}")

    def on_shutdown(self, worker_group, backend_config: SumConfig) -> None:
        print("Backend shut down.")


def rank() -> int:
    return ray.train.get_context().get_world_rank()


def set_variables(variables: dict[str, str]) -> None:
    """In the worker's own environment; `os.environ.update`, sent there, would change the copy that travels with it."""
    os.environ.update(variables)


def free_address() -> tuple[str, int]:
    host = ray.util.get_node_ip_address()
    with socket.create_server((host, 0)) as server:
        return host, server.getsockname()[1]


def connect() -> list[Connection]:
    """Rank 0 gets a connection to each of the others, and these get one to rank 0."""
    address = os.environ["SUM_HOST"], int(os.environ["SUM_PORT"])
    key = os.environ["SUM_KEY"].encode()
    if rank() == 0:
        others = ray.train.get_context().get_world_size() - 1
        with Listener(address, backlog=max(others, 1), authkey=key) as listener:
            return [listener.accept() for _ in range(others)]
    deadline = time.monotonic() + float(os.environ["SUM_TIMEOUT_S"])
    while True:
        try:
            return [Client(address, authkey=key)]
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def total(value: float, peers: list[Connection]) -> float:
    """The sum of what every rank passes in, on every rank."""
    if rank() == 0:
        value += sum(peer.recv() for peer in peers)
    for peer in peers:
        peer.send(value)
    return value if rank() == 0 else peers[0].recv()


def train(config: dict) -> None:
    """Each rank adds its rank + 1, times ten with each epoch."""
    peers = connect()
    for epoch in range(config["epochs"]):
        own = (rank() + 1) * 10**epoch
        ray.train.report({"epoch": epoch, "own": own, "total": total(own, peers)})


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="train", params=vars(args)) as run:
        trainer = DataParallelTrainer(
            train,
            train_loop_config=vars(args),
            backend_config=SumConfig(timeout_s=20),
            scaling_config=ScalingConfig(num_workers=args.workers),
            run_config=mlplatform.run_config("sum", detailed=True),
        )
        trainer.fit()
        print(f"Totals: {json.dumps([report['total'] for report in mlplatform.history('sum')])}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()

"""Add a backend to Ray Train that sets up the workers before the training function starts.

    mlplatform submit train/backend.py -- --workers 2
    ray job submit --working-dir train -- python backend.py --workers 2

The lesson: `TorchTrainer` is a `DataParallelTrainer` whose backend creates torch's process group. A backend has two
classes: a configuration, and hooks that Ray Train's controller calls with the worker group before and after the
training function. The backend below connects the workers, which then sum numbers over a socket, without torch.
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

# Ray Train V2, the version in use; `ray.train.data_parallel_trainer` has the class of V1.
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

import mlplatform


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2, help="processes that compute the sum together")
    parser.add_argument("--epochs", type=int, default=3, help="number of sums")
    return parser.parse_args()


@dataclass
class SumConfig(BackendConfig):
    """Options of the backend."""

    timeout_s: float = 30.0
    """Seconds that the other workers wait for rank 0 to listen."""

    @property
    def backend_cls(self) -> type[Backend]:
        return SumBackend


class SumBackend(Backend):
    """Hooks that run in the controller; the functions that they execute run in the workers' processes."""

    def on_start(self, worker_group, backend_config: SumConfig) -> None:
        """After the workers start: send all of them the address of the first, a key and the timeout."""
        host, port = worker_group.execute_single(0, free_address)
        variables = {
            "SUM_HOST": host,
            "SUM_PORT": str(port),
            "SUM_KEY": secrets.token_hex(),
            "SUM_TIMEOUT_S": str(backend_config.timeout_s),
        }
        worker_group.execute(set_variables, variables)
        print(f"Backend started for {len(worker_group)} workers.")

    def on_training_start(self, worker_group, backend_config: SumConfig) -> None:
        """Just before training: the training context exists, so the workers know their ranks."""
        print(f"Backend sees ranks: {json.dumps(worker_group.execute(rank))}")

    def on_shutdown(self, worker_group, backend_config: SumConfig) -> None:
        print("Backend shut down.")


def rank() -> int:
    return ray.train.get_context().get_world_rank()


def set_variables(variables: dict[str, str]) -> None:
    """Set variables in the worker. (`execute(os.environ.update)` would change a pickled copy of the environment.)"""
    os.environ.update(variables)


def free_address() -> tuple[str, int]:
    host = ray.util.get_node_ip_address()
    with socket.create_server((host, 0)) as server:
        return host, server.getsockname()[1]


def connect() -> list[Connection]:
    """Connect rank 0 to every other rank; return this rank's connections."""
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
    """Return the sum of the values of all ranks, on every rank."""
    if rank() == 0:
        value += sum(peer.recv() for peer in peers)
    for peer in peers:
        peer.send(value)
    return value if rank() == 0 else peers[0].recv()


def train(config: dict) -> None:
    """Sum (rank + 1) * 10**epoch over the ranks, once per epoch."""
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

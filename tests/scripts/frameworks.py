"""The smallest training with each framework that the lessons teach: one fit each, of a name that says which."""

import argparse
import json
import os
import tempfile
from pathlib import Path

import ray.data
import ray.train
import torch
from ray.train import Checkpoint, ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform

ROWS = 12


def transformers(_config: dict) -> None:
    from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

    model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_positions=8, n_embd=4, n_layer=1, n_head=1))
    rows = [{"input_ids": torch.arange(8), "labels": torch.arange(8)}] * 4
    with tempfile.TemporaryDirectory() as folder:
        given = TrainingArguments(
            folder,
            max_steps=2,
            logging_steps=1,
            save_steps=1,
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        )
        trainer = Trainer(model, given, train_dataset=rows, callbacks=[RayTrainReportCallback()])
        prepare_trainer(trainer).train()


def accelerate(_config: dict) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1))
    for step in range(2):
        loss = model(torch.ones(1, 1)).square().mean()
        accelerator.backward(loss)
        optimizer.step()
        report(step, loss=accelerator.gather(loss.detach()[None]).mean().item(), processes=accelerator.num_processes)


def elastic(_config: dict) -> None:
    for step in range(2):
        report(step, workers=ray.train.get_context().get_world_size())


def ray_data(_config: dict) -> None:
    shard = ray.train.get_dataset_shard("train")
    for step in range(2):
        ids = [number for batch in shard.iter_torch_batches(batch_size=4) for number in batch["id"].tolist()]
        report(step, rows=len(ids), ids=sum(ids))


def report(step: int, **metrics: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "step.json").write_text(json.dumps(step))
        first = ray.train.get_context().get_world_rank() == 0
        ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder) if first else None)


FITS = {
    "transformers": (transformers, 1),
    "accelerate": (accelerate, 2),
    "elastic": (elastic, (1, 2)),
    "ray_data": (ray_data, 2),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fits", nargs="+", choices=FITS)
    os.environ["HF_HUB_OFFLINE"] = "1"
    with mlplatform.job_run(experiment="frameworks"):
        for name in parser.parse_args().fits:
            function, workers = FITS[name]
            TorchTrainer(
                function,
                scaling_config=ScalingConfig(num_workers=workers, resources_per_worker={"CPU": 0.5}),
                run_config=mlplatform.run_config(name, aggregate="mean"),
                datasets={"train": ray.data.range(ROWS)} if name == "ray_data" else None,
            ).fit()
            print(f"{name}: history {json.dumps(mlplatform.history(name))}")


if __name__ == "__main__":
    main()

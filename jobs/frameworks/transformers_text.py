"""Train a small GPT-2 on one page of text with Hugging Face Transformers' `Trainer`, fed by Ray Data.

    mlplatform submit frameworks/transformers_text.py -- --epochs 6
    mlplatform submit frameworks/transformers_text.py -- --epochs 6 --die-at-step 12

The lesson: your `Trainer` stays unchanged. `prepare_trainer` makes it read Ray Data's shards, and
`RayTrainReportCallback` reports each saved checkpoint. The platform logs these metrics to the job's run and stores the
checkpoints, so set `report_to="none"`; otherwise the Trainer opens a second run. With `--die-at-step`, one worker is
killed once, and all workers resume from the last checkpoint. Model and tokenizer are created here; `make data FROM=`
on the host caches pretrained ones.
"""

import argparse
import json
import math
import os
import tempfile
from pathlib import Path

import ray.data
import ray.train
from ray.train import Result, ScalingConfig
from ray.train.torch import TorchTrainer

import mlplatform

TEXT = Path(__file__).with_name("harbour.txt")
END = "<end>"
VOCABULARY = 600
TOKENS = 40
"""Maximum number of tokens per line."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="passes over the text")
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--batch-size", type=int, default=4, help="lines per step and worker")
    parser.add_argument("--die-at-step", type=int, help="kill a worker once at this step (third epoch or later)")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def new_tokenizer(lines: list[str]) -> str:
    """Train a byte-pair tokenizer on the text; return it as the JSON of a tokenizer file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        lines, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    return tokenizer.to_str()


def pretrained(tokenizer: str):
    """Wrap the tokenizer JSON in a Transformers tokenizer."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer), eos_token=END, pad_token=END)


def train(config: dict) -> dict:
    """Training function that runs on each worker: an ordinary Transformers script, except for the lines marked Ray."""
    from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

    class DieOnce(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == config["die_at_step"] and ray.train.get_context().get_world_rank() == 0:
                print(f"Killing this worker at step {state.global_step}.", flush=True)
                os._exit(1)

    set_seed(0)
    tokenizer = pretrained(config["tokenizer"])

    def batch_of(rows):
        batch = tokenizer(
            list(rows["text"]), max_length=TOKENS, truncation=True, padding="max_length", return_tensors="pt"
        )
        labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
        return {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"], "labels": labels}

    def shard(name: str):  # Ray: this worker's shard of a data set
        return ray.train.get_dataset_shard(name).iter_torch_batches(
            batch_size=config["batch_size"], collate_fn=batch_of
        )

    size = {"vocab_size": len(tokenizer), "n_positions": TOKENS, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    checkpoint = ray.train.get_checkpoint()  # Ray: the last checkpoint of an earlier attempt
    with tempfile.TemporaryDirectory() as output:
        trainer = Trainer(
            model,
            TrainingArguments(
                output,
                # A shard has no known length, so training is limited in steps instead of epochs.
                max_steps=config["steps"],
                # A resumed training reads its shard from the start, so no rows must be skipped. The Trainer's own epoch
                # count then misses the earlier epochs: use the step instead.
                ignore_data_skip=True,
                learning_rate=config["lr"],
                logging_strategy="epoch",
                eval_strategy="epoch",
                save_strategy="epoch",
                save_total_limit=1,
                report_to="none",
                ddp_find_unused_parameters=False,
                disable_tqdm=True,
                use_cpu=not config["use_gpu"],
            ),
            train_dataset=shard("train"),
            eval_dataset=shard("validation"),
            callbacks=[RayTrainReportCallback()],  # Ray: report each checkpoint
        )
        trainer = prepare_trainer(trainer)  # Ray: read the shards
        first = 0
        with mlplatform.resume_path(checkpoint, RayTrainReportCallback.CHECKPOINT_NAME) as saved:
            if saved:
                first = json.loads(Path(saved, "trainer_state.json").read_text())["global_step"]
                print(f"Resuming at step {first}.", flush=True)
            elif config["die_at_step"] is not None:
                trainer.add_callback(DieOnce())
            trainer.train(resume_from_checkpoint=saved)
    return {"first_step": first, "last_step": trainer.state.global_step}


def continuation(result: Result, tokenizer: str, start: str) -> str:
    """Continue the start of a line with the best model, by greedy decoding."""
    from ray.train.huggingface.transformers import RayTrainReportCallback
    from transformers import GPT2LMHeadModel

    words = pretrained(tokenizer)
    with result.get_best_checkpoint("eval_loss", "min").as_directory() as folder:
        model = GPT2LMHeadModel.from_pretrained(Path(folder, RayTrainReportCallback.CHECKPOINT_NAME))
    tokens = words(start, return_tensors="pt")["input_ids"][:, :-1]
    written = model.generate(tokens, max_length=TOKENS, do_sample=False, pad_token_id=0)
    return words.decode(written[0], skip_special_tokens=True)


def main() -> None:
    args = arguments()
    lines = TEXT.read_text().splitlines()
    tokenizer = new_tokenizer(lines)
    parts = {"validation": lines[::6], "train": [line for number, line in enumerate(lines) if number % 6]}
    steps = args.epochs * math.ceil(len(parts["train"]) // args.workers / args.batch_size)
    with mlplatform.job_run(experiment="frameworks", params=vars(args)) as run:
        trainer = TorchTrainer(
            train,
            train_loop_config={**vars(args), "steps": steps, "tokenizer": tokenizer},
            # Half a CPU per worker leaves the rest to Ray Data, which feeds them.
            scaling_config=ScalingConfig(
                num_workers=args.workers, use_gpu=args.use_gpu, resources_per_worker={"CPU": 0.5}
            ),
            datasets={name: ray.data.from_items([{"text": line} for line in part]) for name, part in parts.items()},
            run_config=mlplatform.run_config("fit", metric="eval_loss", mode="min"),
        )
        result = trainer.fit()

        loss = result.metrics["eval_loss"]
        print(f"Trained: {json.dumps({**result.return_value, 'steps': steps, 'eval_loss': loss})}")
        print(f"Perplexity: {math.exp(loss):.1f} (about {VOCABULARY} before training)")
        print(f"Text: {continuation(result, tokenizer, 'The keeper of the')}")
        print(f"Checkpoints: {mlplatform.checkpoint_uri('fit')}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()

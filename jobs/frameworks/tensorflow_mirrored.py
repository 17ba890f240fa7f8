"""Train on handwritten digits with TensorFlow's `MultiWorkerMirroredStrategy`, using packages installed for this job.

    mlplatform submit frameworks/tensorflow_mirrored.py --pip tensorflow==2.21.0 --pip tf_keras==2.21.0 \\
        --env TF_USE_LEGACY_KERAS=1 -- --epochs 4

The lesson: `TensorflowTrainer` replaces the former `Trainer(backend="tensorflow")`. It sets TF_CONFIG, which tells each
worker its index and the addresses of the others. The strategy cannot train Keras 3 models, so the job also installs
Keras 2 and sets the variable that selects it. The image does not include TensorFlow: Ray installs the packages for this
job only, which takes minutes the first time on a node. Metrics and checkpoints are stored as for PyTorch, and training
resumes from them after a failure. MLflow's own calls work in the training function too.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

import ray.train
from ray.train import Checkpoint, ScalingConfig
from ray.train.tensorflow import TensorflowTrainer

import mlplatform

METRIC = "val_accuracy"
MODEL = "model.keras"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4, help="passes over the training images")
    parser.add_argument("--workers", type=int, default=2, help="training processes")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate")
    parser.add_argument("--batch-size", type=int, default=32, help="images per step and worker")
    parser.add_argument("--use-gpu", action="store_true", help="give each worker one GPU")
    return parser.parse_args()


def digits():
    """Images and labels: 1,497 for training and 300 for validation, identical on every worker."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    return train_test_split(pixels.astype("float32") / 16, labels, test_size=300, random_state=0)


def train(config: dict) -> dict:
    """Training function that runs on each worker: an ordinary script for the strategy that also resumes and reports."""
    import mlflow
    import tensorflow as tf

    class Report(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            # Every rank must save: mirrored variables can only be read by all ranks together.
            with tempfile.TemporaryDirectory() as folder:
                self.model.save(f"{folder}/{MODEL}")
                Path(folder, "epoch.json").write_text(json.dumps(epoch))
                ray.train.report({"epoch": epoch, **logs}, checkpoint=Checkpoint.from_directory(folder))

    # Must come before other TensorFlow code: it connects the workers listed in TF_CONFIG.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    tf_config = json.loads(os.environ["TF_CONFIG"])
    rank, workers = tf_config["task"]["index"], tf_config["cluster"]["worker"]
    print(
        f"Rank {ray.train.get_context().get_world_rank()}: TF_CONFIG index {rank} of {len(workers)}, "
        f"the strategy has {strategy.num_replicas_in_sync} replicas.",
        flush=True,
    )

    # In rank 0 this is the job's run; calls of other ranks are discarded.
    with mlplatform.job_run():
        mlflow.log_metric("replicas", strategy.num_replicas_in_sync)

    images, test_images, labels, test_labels = digits()
    sizes = config["batch_size"] * strategy.num_replicas_in_sync
    options = tf.data.Options()
    # Each worker reads all images and keeps its shard; there are no files to distribute.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    training = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=0).batch(sizes)
    validation = tf.data.Dataset.from_tensor_slices((test_images, test_labels)).batch(sizes)

    first = 0
    with strategy.scope():
        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as folder:
                model = tf.keras.models.load_model(f"{folder}/{MODEL}")
                first = json.loads(Path(folder, "epoch.json").read_text()) + 1
        else:
            model = tf.keras.Sequential(
                [tf.keras.layers.Dense(64, "relu", input_shape=(64,)), tf.keras.layers.Dense(10)]
            )
            loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(tf.keras.optimizers.Adam(config["lr"]), loss, metrics=["accuracy"])
    model.fit(
        training.with_options(options),
        validation_data=validation.with_options(options),
        initial_epoch=first,
        epochs=config["epochs"],
        callbacks=[Report()],
        verbose=0,
    )
    return {"task": rank, "workers": len(workers), "replicas": strategy.num_replicas_in_sync, "first_epoch": first}


def main() -> None:
    args = arguments()
    with mlplatform.job_run(experiment="frameworks", params=vars(args)) as run:
        trainer = TensorflowTrainer(
            train,
            train_loop_config=vars(args),
            scaling_config=ScalingConfig(num_workers=args.workers, use_gpu=args.use_gpu),
            run_config=mlplatform.run_config("fit", metric=METRIC),
        )
        result = trainer.fit()
        print(f"Trained: {json.dumps({**result.return_value, METRIC: result.metrics[METRIC]})}")
        print(f"Checkpoints: {mlplatform.checkpoint_uri('fit')}")
        if run:
            print(f"Run: {mlplatform.run_url(run)}")


if __name__ == "__main__":
    main()

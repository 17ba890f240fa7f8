"""Recompute the test accuracy of digits.py from its model and checkpoints.

    python accuracy.py FOLDER_OF_DIGITS_PY MODEL_FOLDER CHECKPOINTS

Prints JSON: the accuracy of the downloaded model, and of the best checkpoint of the training run stored at CHECKPOINTS.
"""

import json
import sys

import torch
from ray.train import Result

sys.path.insert(0, sys.argv[1])
import digits


def accuracy(model: torch.nn.Module) -> float:
    images, labels = digits.digits()["test"].tensors
    with torch.inference_mode():
        guesses = torch.cat([model(batch) for batch in images.split(4)]).argmax(1)
    return (guesses == labels).float().mean().item()


def main() -> None:
    import mlflow

    model, checkpoints = sys.argv[2:]
    found = {
        "model": accuracy(mlflow.pytorch.load_model(model)),
        "checkpoint": accuracy(digits.best_network(Result.from_path(checkpoints))),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

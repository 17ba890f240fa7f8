"""Train MobileNetV2 on Food-11 in plain PyTorch, without any code of this platform.

    mlplatform submit food11/plain.py -- --epochs 2
    ray job submit --working-dir food11 -- python plain.py --epochs 2

The lesson: a script needs no changes to run as a job. Its folder is uploaded, the photos are on every node at
FOOD11_DATA_DIR, and its output is the job's log. But nothing is recorded: the metrics scroll by, and the network is
lost at the end. `tracked.py` adds MLflow to the same training. (To train on a GPU, reserve one: `--gpus 1` before the
file.)
"""

import argparse
import json
import time

import food
import torch
from torch import nn
from torch.utils.data import DataLoader

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def arguments(description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-epochs", type=int, default=1, help="passes that train only the last layer")
    parser.add_argument("--epochs", type=int, default=3, help="further passes that train the whole network")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate; divided by ten for the whole network")
    parser.add_argument("--batch-size", type=int, default=32, help="photos per step")
    parser.add_argument("--size", type=int, default=96, help="height and width of the scaled photos in pixels")
    parser.add_argument("--num-workers", type=int, default=0, help="data loader processes")
    parser.add_argument("--pretrained", action="store_true", help="start from ImageNet weights, at full width")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and of the photo order")
    return parser.parse_args()


def loader(part: str, args: argparse.Namespace) -> DataLoader:
    return DataLoader(
        food.dataset(part, args.size), args.batch_size, shuffle=part == "training", num_workers=args.num_workers
    )


def passed(net: nn.Module, photos: DataLoader, optimizer: torch.optim.Optimizer | None = None) -> tuple[float, float]:
    """Run one pass over the photos, training if an optimizer is given; return mean loss and accuracy."""
    net.train(optimizer is not None)
    loss_sum, right = 0.0, 0
    with torch.set_grad_enabled(optimizer is not None):
        for images, labels in photos:
            scores = net(images.to(DEVICE))
            loss = nn.functional.cross_entropy(scores, labels.to(DEVICE))
            if optimizer:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            loss_sum += loss.item() * len(labels)
            right += (scores.argmax(1).cpu() == labels).sum().item()
    return loss_sum / len(photos.dataset), right / len(photos.dataset)


def epochs(net: nn.Module, args: argparse.Namespace):
    """Train the last layer, then the whole network; yield (epoch, measurements) after each epoch."""
    training, validation = loader("training", args), loader("validation", args)
    food.freeze(net)
    optimizer = torch.optim.Adam(net.classifier.parameters(), lr=args.lr)
    for epoch in range(args.head_epochs + args.epochs):
        if epoch == args.head_epochs:
            food.unfreeze(net)
            optimizer = torch.optim.Adam(net.parameters(), lr=args.lr / 10)
        began = time.perf_counter()
        train_loss, train_accuracy = passed(net, training, optimizer)
        val_loss, val_accuracy = passed(net, validation)
        measured = {
            "epoch_time": time.perf_counter() - began,
            "train_loss": train_loss,
            "train_accuracy": train_accuracy,
            "val_loss": val_loss,
            "val_accuracy": val_accuracy,
            "trainable_params": food.trainable(net),
        }
        print(f"epoch {epoch}: {json.dumps(measured)}", flush=True)
        yield epoch, measured


def main() -> None:
    args = arguments(__doc__)
    torch.manual_seed(args.seed)
    net = food.network(args.pretrained).to(DEVICE)
    print(f"Training on {DEVICE} with photos from {food.folder()}", flush=True)
    for _ in epochs(net, args):
        pass
    loss, accuracy = passed(net, loader("evaluation", args))
    print(f"test: {json.dumps({'test_loss': loss, 'test_accuracy': accuracy})}")


if __name__ == "__main__":
    main()

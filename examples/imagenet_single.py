"""Train a ResNet on ImageNet, or on generated images.

    python examples/imagenet_single.py --data /data/imagenet
    python examples/imagenet_single.py --dummy --arch resnet18 --image-size 64 --epochs 2

This is the form for one device: plain PyTorch, and Pillow to read images. ``imagenet.py`` beside it is the
same file with one line changed, and the import that this line needs.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

Sample = tuple[torch.Tensor, int]

CLASSES = 1000
NO_TARGET = -100  # what cross entropy leaves out
MEAN, DEVIATION = (torch.tensor(c).view(3, 1, 1) for c in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
IMAGES = {".jpeg", ".jpg", ".png", ".webp", ".bmp", ".ppm"}


def convolution(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)


class Residual(nn.Module):
    """Convolutions around which the input passes by."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.shortcut = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))
        self.layers = nn.Sequential()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.layers(x) + self.shortcut(x))


class Basic(Residual):
    """The block of ResNet-18 and 34 (arXiv 1512.03385)."""

    widening = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__(inputs, width, stride)
        self.layers.extend((convolution(inputs, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()))
        self.layers.extend((convolution(width, width, 3), nn.BatchNorm2d(width)))


class Bottleneck(Residual):
    """The block of ResNet-50, as version 1.5: the 3x3 convolution has the stride."""

    widening = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__(inputs, 4 * width, stride)
        self.layers.extend((convolution(inputs, width, 1), nn.BatchNorm2d(width), nn.ReLU()))
        self.layers.extend((convolution(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU()))
        self.layers.extend((convolution(width, 4 * width, 1), nn.BatchNorm2d(4 * width)))


class ResNet(nn.Module):
    """A stem, four stages of residual blocks, a linear layer on their mean."""

    def __init__(self, block: type[Basic | Bottleneck], depths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
        )
        self.stages, inputs = nn.Sequential(), 64
        for stage, depth in enumerate(depths):
            width = 64 * 2**stage
            outputs, stride = width * block.widening, 2 if stage else 1
            rest = (block(outputs, width, 1) for _ in range(depth - 1))
            self.stages.append(nn.Sequential(block(inputs, width, stride), *rest))
            inputs = outputs
        self.head = nn.Linear(inputs, CLASSES)
        self.apply(self._init_weights)

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.stages(self.stem(images)).mean(dim=(2, 3)))


def build() -> ResNet:
    """Return an untrained ResNet-50: 25,557,032 parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3))


def resnet34() -> ResNet:
    return ResNet(Basic, (3, 4, 6, 3))


def resnet18() -> ResNet:
    return ResNet(Basic, (2, 2, 2, 2))


ARCHITECTURES = {"resnet50": build, "resnet34": resnet34, "resnet18": resnet18}


def sample_inputs(micro_batch_size: int, _sequence_length: int | None) -> torch.Tensor:
    """Return images as ``forward`` takes them, so that a planner can trace the model."""
    return torch.zeros(micro_batch_size, 3, 224, 224)


class Generated(Dataset[Sample]):
    """Noise over one picture of each class, the same each time that it is asked for."""

    def __init__(self, samples: int, classes: int, size: int, seed: int) -> None:
        self.samples, self.size, self.seed, self.epoch = samples, size, seed, 0
        self.pictures = torch.randn(classes, 3, 4, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Sample:
        target = index % len(self.pictures)
        noise = torch.Generator().manual_seed(self.seed + index)
        picture = functional.interpolate(self.pictures[target, None], self.size)[0]
        return picture + torch.randn(3, self.size, self.size, generator=noise), target


class Folder(Dataset[Sample]):
    """Images in a folder for each class, cut at random or in the middle."""

    def __init__(self, folder: Path, classes: list[str], size: int, seed: int | None) -> None:
        if importlib.util.find_spec("PIL") is None:
            raise SystemExit("images are read by Pillow: pip install pillow, or try --dummy")
        targets = {name: target for target, name in enumerate(classes)}
        unknown = [name for name in classes_of(folder) if name not in targets]
        if unknown:
            raise SystemExit(f"{folder} has {unknown[0]}, which is no class to train on")
        files = (path for path in sorted(folder.glob("*/**/*")) if path.suffix.lower() in IMAGES)
        self.samples = [(path, targets[path.relative_to(folder).parts[0]]) for path in files]
        if not self.samples:
            raise SystemExit(f"there are no images in {folder}/CLASS/")
        self.size, self.seed, self.epoch = size, seed, 0

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Sample:
        from PIL import Image  # noqa: PLC0415  (generated images do without)

        path, target = self.samples[index]
        with Image.open(path) as opened:
            image = opened.convert("RGB")
        drawn = None
        if self.seed is not None:  # by sample, so that the number of processes does not matter
            drawn = torch.Generator().manual_seed(hash((self.seed, self.epoch, index)) % 2**63)
        box = middle(*image.size) if drawn is None else cut(*image.size, drawn)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(
            self.size, self.size, 3
        )
        if drawn is not None and torch.rand((), generator=drawn) < 0.5:
            pixels = pixels.flip(1)
        return (pixels.permute(2, 0, 1) / 255 - MEAN) / DEVIATION, target


def classes_of(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise SystemExit(f"there is no folder {folder}: --data DIR has train/CLASS/ and val/CLASS/")
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def middle(width: int, height: int) -> tuple[float, float, float, float]:
    """Return the box of the middle seven eighths of the shorter side: 224 of 256 pixels."""
    side = min(width, height) * 224 / 256
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def cut(width: int, height: int, drawn: torch.Generator) -> tuple[float, float, float, float]:
    """Return a random box of 8 to 100 % of the area, up to a third wider or higher (arXiv 1409.4842)."""
    for _ in range(10):
        part, ratio, left, top = torch.rand(4, generator=drawn, dtype=torch.float64).tolist()
        area, aspect = width * height * (0.08 + 0.92 * part), (4 / 3) ** (2 * ratio - 1)
        wide, high = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if wide <= width and high <= height:
            left, top = left * (width - wide), top * (height - high)
            return left, top, left + wide, top + high
    return middle(width, height)


class Padded(Dataset[Sample]):
    """The samples, and the first again without target, until all processes can have as many."""

    def __init__(self, samples: Generated | Folder) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return -(-len(self.samples) // ranks()) * ranks()

    def __getitem__(self, index: int) -> Sample:
        return self.samples[index] if index < len(self.samples) else (self.samples[0][0], NO_TARGET)


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def say(text: str) -> None:
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(text, flush=True)


def over_ranks(values: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the sum over all processes."""
    if dist.is_initialized():
        values = values.detach().to(device, copy=True)
        dist.all_reduce(values)
    return values.detach().cpu()


class Scores(NamedTuple):
    samples: int
    loss: float
    top1: int
    top5: int

    def __str__(self) -> str:
        first, fifth = (100 * count / self.samples for count in (self.top1, self.top5))
        counts = f"top-1 {self.top1} ({first:.2f} %) top-5 {self.top5} ({fifth:.2f} %)"
        return f"loss {self.loss:.8f} {counts} of {self.samples}"


def evaluate(model: nn.Module, loader: DataLoader[Sample], samples: int, device: torch.device) -> Scores:
    """Return the scores over all ``samples``, each counted once, whatever the number of processes."""
    sums = torch.zeros(4, dtype=torch.float64)
    model.eval()
    with torch.no_grad():
        for images, targets in loader:
            logits = model(images.to(device)).float().cpu()
            hits = logits.topk(5).indices == targets[:, None]
            loss = functional.cross_entropy(logits.double(), targets, reduction="sum")
            parts = ((targets != NO_TARGET).sum(), loss, hits[:, 0].sum(), hits.sum())
            sums += torch.stack([part.double() for part in parts])
    model.train()
    counted, loss, top1, top5 = over_ranks(sums, device).tolist()
    copies, rest = divmod(counted, samples)  # processes that share samples count them alike
    if rest or not copies:
        raise SystemExit(f"{counted:.0f} samples were evaluated of {samples}")
    return Scores(samples, loss / counted, int(top1 / copies), int(top5 / copies))


def learning_rate(step: int, steps: int, warmup: int, peak: float) -> float:
    """Rise in a line for ``warmup`` steps, then fall along a cosine to zero."""
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1))) / 2


def train(
    model: nn.Module,
    loader: DataLoader[Sample],
    optimizer: torch.optim.Optimizer,
    epoch: int,
    args: argparse.Namespace,
) -> None:
    """Train for one epoch; every so often print the mean loss and the speed of all processes."""
    device, per_epoch = next(model.parameters()).device, len(loader)
    seen, begin = 0, time.perf_counter()
    for index, (images, targets) in enumerate(loader):
        rate = learning_rate(
            epoch * per_epoch + index, args.epochs * per_epoch, args.warmup * per_epoch, args.lr
        )
        for group in optimizer.param_groups:
            group["lr"] = rate
        logits = model(images.to(device, non_blocking=True)).float()
        loss = functional.cross_entropy(logits, targets.to(device), label_smoothing=args.label_smoothing)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += len(targets) * ranks()
        if (index + 1) % args.print_every == 0 or index + 1 == per_epoch:
            mean = over_ranks(loss, device).item() / ranks()
            speed = seen / (time.perf_counter() - begin)
            place = f"epoch {epoch} step {index + 1}/{per_epoch}"
            say(f"{place} loss {mean:.4f} lr {rate:.5f} {speed:.0f} images/s")
            seen, begin = 0, time.perf_counter()


def save(
    model: nn.Module, optimizer: torch.optim.Optimizer, path: Path, progress: dict[str, float]
) -> None:
    """Write one file that any number of processes can go on from; a killed run leaves the one before."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights, moments = get_state_dict(model, optimizer, options=options)
    if not dist.is_initialized() or dist.get_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": weights, "optimizer": moments, "progress": progress}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)


def load(model: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> dict[str, float]:
    """Read what ``save`` wrote; return the progress."""
    if not path.is_file():
        raise SystemExit(f"there is no checkpoint {path}")
    state = torch.load(path, map_location="cpu", weights_only=True)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(full_state_dict=True),
    )
    return state["progress"]


def data_sets(args: argparse.Namespace) -> tuple[Generated | Folder, Generated | Folder]:
    """Return what to train on and what to evaluate on."""
    if args.dummy:
        train_set = Generated(args.samples, args.classes, args.image_size, args.seed)
        return train_set, Generated(args.val_samples, args.classes, args.image_size, args.seed + 2**40)
    classes = classes_of(args.data / "train")
    if len(classes) > CLASSES:
        raise SystemExit(f"{args.data / 'train'} has {len(classes)} classes; the model has {CLASSES}")
    train_set = Folder(args.data / "train", classes, args.image_size, args.seed)
    return train_set, Folder(args.data / "val", classes, args.image_size, None)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a ResNet on ImageNet, or on generated images.")
    data = parser.add_mutually_exclusive_group(required=True)
    data.add_argument("--data", type=Path, help="folder with train/CLASS/ and val/CLASS/")
    data.add_argument("--dummy", action="store_true", help="generate images")
    parser.add_argument("--samples", type=int, default=1280, help="generated images to train on")
    parser.add_argument("--val-samples", type=int, default=250, help="generated images to evaluate on")
    parser.add_argument("--classes", type=int, default=10, help="classes of generated images")
    parser.add_argument("--arch", choices=ARCHITECTURES, default="resnet50")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="images of a step; a plan has its own")
    parser.add_argument("--lr", type=float, default=0.1, help="highest learning rate; 0.1 suits 256 images")
    parser.add_argument("--warmup", type=int, default=5, help="epochs in which the learning rate rises")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--label-smoothing", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=4, help="processes that read images, for each rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print-every", type=int, default=10, help="steps")
    parser.add_argument("--output", type=Path, help="folder for last.pt and best.pt")
    parser.add_argument("--resume", type=Path, help="last.pt or best.pt to go on from")
    parser.add_argument("--evaluate", action="store_true", help="evaluate and stop")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    torch.manual_seed(args.seed)
    train_set, val_set = data_sets(args)
    order = torch.Generator()
    how = {"batch_size": args.batch_size, "num_workers": args.workers}
    loaders = [
        DataLoader(train_set, shuffle=True, generator=order, drop_last=True, **how),
        DataLoader(Padded(val_set), **how),
    ]

    chosen = ARCHITECTURES[args.arch]
    model = chosen().to(torch.accelerator.current_accelerator(check_available=True) or "cpu")
    batches, tests = loaders
    device = next(model.parameters()).device
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay
    )
    progress = load(model, optimizer, args.resume) if args.resume else {"epochs": 0, "best": 0}
    if args.evaluate:
        say(f"evaluation: {evaluate(model, tests, len(val_set), device)}")
        return
    if not len(batches):
        raise SystemExit(f"{len(train_set)} images are less than one batch")

    for epoch in range(progress["epochs"], args.epochs):
        order.manual_seed(args.seed + epoch)
        train_set.epoch = epoch
        train(model, batches, optimizer, epoch, args)
        scores = evaluate(model, tests, len(val_set), device)
        say(f"epoch {epoch} evaluation: {scores}")
        better = scores.top1 > progress["best"]
        progress = {"epochs": epoch + 1, "best": max(scores.top1, progress["best"])}
        if args.output:
            save(model, optimizer, args.output / "last.pt", progress)
        if args.output and better:
            save(model, optimizer, args.output / "best.pt", progress)


if __name__ == "__main__":
    main()

"""``train``: a small CNN on real images, and the memory of its training step."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import TextColumn

import tinygrad_mem as tm

from .. import memory
from ..data import DataLoader, TensorDataset
from ..data.cifar10 import load_cifar10
from ..data.digits import load_digits
from ..data.mnist import load_mnist
from ..errors import ArgumentError, DeviceError
from ..memory.render.terminal import bytes_text, peak_table
from ..models.digits import DigitsCNN
from ..techniques import optimizer_in_backward
from ..tips.digits import DigitsTraining
from .networks import IN_BACKWARD, OPTIMIZERS
from .one_by_one import progress
from .screen import screen

_RATES = {"momentum": 0.05, "momentum-half": 0.05, "sgd8bit": 0.05, "lomo": 0.1, "adadelta": 1.0, "adagrad": 0.01}
_RATES |= {"adafactor": 0.02, "adalomo": 0.02, "lion": 1e-3, "muon": 5e-3, "radam": 0.02}
TRACKED_STEPS = 2  # the second step is the first that begins with optimizer state


def _load(data: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, then held-out ones. Images are float32, (count, channels, height, width)."""
    if data == "digits":
        return load_digits()
    if folder is None:
        raise ArgumentError(f"--data {data} reads the original files: give their folder with --data-dir")
    return load_mnist(folder) if data == "mnist" else load_cifar10(folder)


def _optimizer(name: str, parameters: Any, **options: Any) -> Any:
    if name == "sgd":
        return tm.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-4, **options)
    rule = OPTIMIZERS[name](parameters, lr=_RATES.get(name, 2e-3), **options)
    if name in IN_BACKWARD:
        optimizer_in_backward(rule)
    return rule


def _train(
    training: DigitsTraining, batches: DataLoader, held_out: DataLoader, epochs: int, watch: memory.Track, console: Console
) -> None:
    """All epochs, with a bar; ``watch`` tracks the first steps."""
    total = epochs * len(batches)
    schedule = tm.optim.lr_scheduler.CosineAnnealingLR(training.rule, total)
    with progress(console, "epoch {task.fields[epoch]:>3}", TextColumn("{task.fields[text]}")) as bar:
        task = bar.add_task("train", total=total, epoch=1, text="")
        steps, tracked = 0, min(TRACKED_STEPS, total)
        for epoch in range(1, epochs + 1):
            losses = 0.0
            for images, labels in batches:
                losses += training.step(images.to(training.device), labels.to(training.device))
                schedule.step()
                steps += 1
                if steps == tracked - 1:
                    watch.mark()  # the table shows the last tracked step
                if steps == tracked:
                    watch.__exit__()
                bar.update(task, advance=1, epoch=epoch)
            bar.update(task, text=f"loss {losses / len(batches):.4f}  accuracy {training.accuracy(held_out):.2%}")


def run(
    *,
    device: str,
    batch_size: int,
    epochs: int,
    seed: int,
    optimizer: str,
    precision: str,
    data: str,
    data_dir: Path | None,
    picture: Path | None,
    as_json: bool,
) -> int:
    """Train, print the accuracy, print what the memory of a step was used for. Returns 0."""
    console = screen(stderr=as_json)
    where = tm.device(device)
    if where.kind == "meta":
        raise DeviceError("a network on meta has no values, so it cannot be trained: use cpu or cuda")
    where.require()  # before data is read
    tm.manual_seed(seed)
    train_x, train_y, test_x, test_y = _load(data, data_dir)
    train_set = TensorDataset(tm.from_numpy(train_x), tm.from_numpy(train_y))
    test_set = TensorDataset(tm.from_numpy(test_x), tm.from_numpy(test_y))
    shuffled = DataLoader(train_set, batch_size, shuffle=True, drop_last=True, generator=tm.Generator().manual_seed(seed))
    if not len(shuffled):
        raise ArgumentError(f"--batch-size {batch_size} is larger than the {len(train_set)} training images")
    if not len(test_set):
        raise ArgumentError(f"--data {data}: there are no held-out images in {data_dir}")
    held_out = DataLoader(test_set, 256)
    console.print(
        f"{data}: {len(train_set):,} training images, {len(test_set):,} held out, {list(train_x.shape[1:])} each",
        highlight=False,
    )
    began = time.perf_counter()
    watch = memory.track(where)
    watch.__enter__()
    try:
        with where:
            model = DigitsCNN(channels=train_x.shape[1], size=train_x.shape[2])
        training = DigitsTraining(model, partial(_optimizer, optimizer), precision, where)
        _train(training, shuffled, held_out, epochs, watch, console)
    finally:
        if watch.running:
            watch.__exit__()
    right, seconds = training.accuracy(held_out), time.perf_counter() - began
    count = sum(p.numel() for p in model.parameters())
    plural = "s" * (epochs > 1)
    console.print(f"test accuracy {right:.2%} after {epochs} epoch{plural}", highlight=False, style="bold")
    console.print(f"{seconds:.1f} s on {where}, {count:,} parameters", highlight=False)
    peak = _report(watch, where, batch_size, picture, console)
    if as_json:
        parts = {category.value: size for category, size in peak.by_category.items()}
        found = {"device": str(where), "accuracy": right, "seconds": seconds, "parameters": count}
        print(json.dumps(found | {"peak": peak.used, "phase": peak.phase, "by_category": parts}, indent=2))
    return 0


def _report(watch: memory.Track, where: tm.device, batch_size: int, picture: Path | None, console: Console) -> memory.Moment:
    """Print the memory of the last tracked step at its peak, and draw the picture. Returns the peak."""
    peak = watch.at_peak(since=watch.marks[-1] if watch.marks else 0)
    console.print(peak_table(peak, f"memory of a training step on {where}, batch {batch_size}, at its peak ({peak.phase})"))
    console.print(f"the pool has reserved {bytes_text(where.pool.total_bytes())} from the machine so far", highlight=False)
    if picture is not None:
        watch.plot(picture, title=f"Making the model, then the first training steps, batch {batch_size}")
        console.print(f"wrote {picture}")
    return peak

"""The explorer without Python behind it: its page, and predictions of a grid of settings, computed in advance."""

from __future__ import annotations

import itertools
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tinygrad_mem.cli.explore import find
from tinygrad_mem.explore.answer import answer
from tinygrad_mem.explore.page import page
from tinygrad_mem.explore.setting import StepSetting
from tinygrad_mem.memory.render.page import packed

NETWORKS = ("resnet20", "resnet50", "vgg16", "bert-base", "gpt2", "llama-3.2-1b")
GRID: dict[str, Sequence[Any]] = {
    "batch_size": (2, 4, 8, 16, 32, 64),
    "optimizer": ("momentum", "adamw", "adamw8bit"),
    "precision": ("float32", "autocast", "bfloat16"),
    "recompute": ("none", "every-block"),
    "accumulate": (1, 2),
    "offload": (False, True),
    "device": ("cuda",),
}
"""The values of each field of a setting. Every combination has an answer: 2,592 predictions, about 500 s of processor time."""
LIMIT = 3_000_000
"""The most bytes of the page and its files."""
_INTRO = """<p><a href="index.html">tinygrad_mem</a>: where the memory of training goes.</p>
<p class="quiet">The predictions of six networks, with the kernels of a GPU, were computed in advance.
<code>python -m tinygrad_mem explore</code> predicts other networks and settings, yours too.
The page's address holds the settings.</p>
"""


def settings(network: str, grid: Mapping[str, Sequence[Any]]) -> Iterator[StepSetting]:
    """The settings of a network, in the order of its file."""
    for values in itertools.product(*grid.values()):
        yield StepSetting(network, **dict(zip(grid, values, strict=True)))


def write(folder: Path, networks: Sequence[str] = NETWORKS, grid: Mapping[str, Sequence[Any]] = GRID, workers: int = 2) -> None:
    """Write ``explorer.html`` into ``folder``, and a file of answers for each network into ``explorer`` there.

    Scripts, not JSON, because a page that was opened as a file can load nothing else. Without ``workers``, this process
    predicts.

    Raises:
        TinygradMemError: a setting has no answer.
        ValueError: the files are larger than LIMIT.
    """
    offered = {name: values for name, values in grid.items() if len(values) > 1}
    start = replace(next(settings(networks[0], grid)), batch_size=grid["batch_size"][len(grid["batch_size"]) // 2])
    text = page({"network": networks, **offered}, start, _INTRO, files="explorer")
    files = [folder / "explorer.html", *(folder / "explorer" / f"{network}.js" for network in networks)]
    files[1].parent.mkdir(parents=True, exist_ok=True)
    files[0].write_text(text, encoding="utf-8")
    with (
        Progress(TextColumn("predictions: {task.description}"), MofNCompleteColumn(), TimeElapsedColumn()) as progress,
        ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) if workers else nullcontext() as pool,
    ):
        predicted = partial(pool.map, chunksize=8) if pool else map
        for network, file in zip(networks, files[1:], strict=True):
            asked = list(settings(network, grid))
            found = progress.track(predicted(_predicted, asked), len(asked), description=network)
            file.write_text(f'arrived("{network}", "{packed(list(found))}");\n', encoding="utf-8")
    if (size := sum(file.stat().st_size for file in files)) > LIMIT:
        raise ValueError(f"the explorer's files have {size:,} bytes, more than {LIMIT:,}: choose a smaller grid")


def _predicted(setting: StepSetting) -> dict[str, Any]:
    return answer(setting, *find(setting))

"""What all lessons share: the numbers that a lesson says, and its pictures.

A lesson is a script in percent format (``# %%`` begins a cell, ``# %% [markdown]`` one of text). It runs as it stands,
opens as a notebook, and says each of its numbers through one object, so that no number is only written::

    RESULT = Result()
    RESULT.agree("weights", by_hand=4 * n, predicted=..., measured=...)  # prints them; they must be equal
    RESULT.say("peak", track.peak)
    RESULT.ends(f"The step takes {track.peak:,} bytes.")

``python 01_where_does_memory_go.py [FOLDER] [--device cuda]``: tensors are made on that device, ``DEVICE`` is its name, and
predictions are of it. A lesson says where one of its numbers holds on one device alone.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import tinygrad_mem as tm
from tinygrad_mem.errors import DeviceError
from tinygrad_mem.memory import Category, Track
from tinygrad_mem.memory.render.palette import COLOURS, LINES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "TINYGRAD_MEM_PICTURES"  # the environment variable that says where pictures go
SHOWN: dict[str, str] = {}
"""What each picture shows, in words, by its name."""


def _arguments() -> argparse.Namespace:
    """Of the script; the arguments of a notebook are Jupyter's. Tensors are made on the device from now on.

    Raises:
        SystemExit: there is no GPU here; said in a sentence.
    """
    parser = argparse.ArgumentParser(description="A lesson: it prints its numbers, and draws its pictures into a folder.")
    parser.add_argument("folder", nargs="?", default="", help="where the pictures go")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where it is measured: cpu unless given")
    given = parser.parse_args([] if "ipykernel" in sys.modules else None)
    if given.device == "cuda":
        try:
            tm.device("cuda").pool  # noqa: B018  (a GPU that is not here says so)
        except DeviceError as error:
            parser.error(str(error))
        tm.set_default_device("cuda")
    return given


_ARGUMENTS = _arguments()
DEVICE: str = _ARGUMENTS.device


class Result(dict[str, float]):
    """The numbers that a lesson says, by name; ``ending`` is the sentence that it ends with."""

    ending = ""

    def agree(self, name: str, *, within: float = 0, unit: str = "bytes", **ways: float) -> None:
        """Print one number that was found in several ways, and remember the last.

        Args:
            within: how far apart they may be: 0, unless the lesson says why they differ.
            ways: ``by_hand=``, ``predicted=``, ``measured=``: at least two.

        Raises:
            AssertionError: they are farther apart.
        """
        print(
            f"{name}: " + ", ".join(f"{way.replace('_', ' ')} {number:,}" for way, number in ways.items()) + f" {unit}".rstrip()
        )
        if len(ways) < 2:
            raise AssertionError(f"{name}: a number agrees with another one; say() says one alone")
        if max(ways.values()) - min(ways.values()) > within:
            raise AssertionError(f"{name}: {ways} are more than {within:,} {unit} apart")
        self[name] = list(ways.values())[-1]

    def say(self, name: str, number: float, unit: str = "bytes") -> None:
        """Print one number and remember it."""
        print(f"{name}: {number:,} {unit}".rstrip())
        self[name] = number

    def ends(self, sentence: str) -> None:
        """Print the sentence, with its number, that this lesson comes to: the contents page has it too."""
        print(sentence)
        self.ending = sentence


def samples(count: int, part: int = 4) -> int:
    """How many samples a lesson measures where so many are right for the cpu: on cuda one of so many, because the tests run
    the lessons on a GPU that is emulated, and slow.
    """
    return count if DEVICE == "cpu" else count // part


def block(size: float) -> int:
    """What the pool counts for so many bytes: the next multiple of 512."""
    return -(-int(size) // 512) * 512


def most(track: Track, since: str, until: str) -> int:
    """The most bytes in use between two marks of a track, the last of each text."""
    at, timeline = {mark.text: mark.index for mark in track.marks}, track.timeline()
    first, last = np.searchsorted(timeline.event, [at[since], at[until]], "right")
    return int(timeline.used[max(first - 1, 0) : last].max())


def picture(what: Track | Figure, name: str, title: str = "") -> None:
    """Show a track's timeline or a figure: in a notebook below the cell, else as ``NAME.png`` in the folder that is the
    script's argument, or that ``TINYGRAD_MEM_PICTURES`` names. Without either nothing is drawn.

    Raises:
        ValueError: it has no title: a figure may have one above all, or one above each of its axes.
    """
    if not title and (isinstance(what, Track) or not all(axes.get_title("left") for axes in what.axes)):
        raise ValueError(f"picture {name}: give it a title, which says what it shows")
    SHOWN[name] = _in_words(what, title)
    notebook = "ipykernel" in sys.modules
    folder = os.environ.get(FOLDER) or _ARGUMENTS.folder
    if not notebook and not folder:
        print(f"(picture {name}: name a folder to have it drawn, python {sys.argv[0]} FOLDER)")
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch if notebook else folder) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(what, Track):
            what.plot(path, title=title)
        else:
            if title:
                what.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
            what.savefig(path)
        if notebook:
            from IPython.display import Image, display  # pyright: ignore

            display(Image(data=path.read_bytes()))
        else:
            print(f"(picture {path.name})")


def _in_words(what: Track | Figure, title: str) -> str:
    """What a picture shows: its titles, and what stands along the axes."""
    if isinstance(what, Track):
        return f"{title}: bytes in use over time, stacked by category"
    parts = []
    for axes in what.axes:
        along = " by ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
        parts.append(": ".join(filter(None, (axes.get_title("left"), along))))
    return "; ".join(filter(None, [title, *parts]))


def figure(columns: int = 1, height: float = 4.0) -> tuple[Figure, Any]:
    """An empty figure of ``columns`` axes side by side, without a window: (figure, axes, or a list of them)."""
    from matplotlib.figure import Figure

    made = Figure(figsize=(9, height), dpi=150, layout="constrained")
    axes = [made.add_subplot(1, columns, i + 1) for i in range(columns)]
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
        each.set_prop_cycle(color=LINES, linestyle=["-", "--", "-.", ":", (0, (6, 1)), (0, (1, 1))])
    return made, axes[0] if columns == 1 else axes


def stacked(runs: Mapping[str, Mapping[Category, int]], title: str = "") -> Figure:
    """A bar for each run, of its bytes by category (``track.by_category()``), in MiB, in the tracker's colours."""
    made, axes = figure(height=1.4 + 0.45 * len(runs))
    shown = [c for c in Category if any(sizes.get(c) for sizes in runs.values())]
    left = dict.fromkeys(runs, 0.0)
    for category in shown:
        widths = {run: sizes.get(category, 0) / 2**20 for run, sizes in runs.items()}
        axes.barh(list(runs), list(widths.values()), left=list(left.values()), color=COLOURS[category], label=category.value)
        left = {run: left[run] + widths[run] for run in runs}
    for run, end in left.items():
        axes.annotate(f" {end:,.1f}", (end, run), va="center", fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="MiB", xlim=(0, 1.12 * max(left.values())))
    axes.set_title(title, loc="left", fontweight="bold")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return made

"""The page: a form of the settings that have an answer, and the script that shows the answers."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from importlib import resources
from typing import Any

from ..memory.render import sheet
from ..memory.render.palette import COLOURS
from ..memory.sizes import READ
from .answer import FULL, WIDE
from .setting import StepSetting

Choices = Mapping[str, Sequence[Any] | None]
"""The values that each field of a setting can take; ``None``: any text. What is not among them is not on the page."""
_LABELS = {
    "network": "network",
    "batch_size": "samples in a batch",
    "sample": "shape of an image",
    "tokens": "tokens of a sample",
    "optimizer": "optimizer",
    "precision": "precision",
    "recompute": "recompute blocks",
    "accumulate": "micro-batches",
    "offload": "offload saved tensors to the host",
    "device": "device",
}
_HINTS = {"sample": "such as 3x64x64", "tokens": "such as 512"}


def page(choices: Choices, start: StepSetting, intro: str, files: str = "") -> str:
    """The page as HTML. Its script asks ``predict`` beside it for each answer, or takes it from files.

    Args:
        start: the setting that it begins with. What has no choice stays so.
        intro: HTML.
        files: the folder beside the page with a file of answers for each network: one for each combination of other choices.
    """
    inputs = "".join(_field(name, choices[name]) for name in _LABELS if name in choices)
    offered = {
        "start": asdict(start),
        "files": files,
        "grid": {name: values for name, values in choices.items() if name != "network"} if files else {},
        "colours": {category.value: colour for category, colour in COLOURS.items()},
        "units": READ,
        "box": [WIDE, FULL],
    }
    text = json.dumps(offered).replace("<", "\\u003c")
    body = _asset("html").replace("@@intro@@", intro).replace("@@fields@@", inputs).replace("@@offered@@", text)
    return sheet.document("The memory of a training step", body, sheet.asset("numbers.js") + _asset("js"), _asset("css"))


def _field(name: str, values: Sequence[Any] | None) -> str:
    label, kinds = _LABELS[name], {each.name: type(each.default) for each in fields(StepSetting)}
    if values is None:
        return f'<label>{label} <input name="{name}" placeholder="{_HINTS[name]}" autocomplete="off"></label>'
    if kinds[name] is bool:
        return f'<label class="wide"><input name="{name}" type="checkbox"> {label}</label>'
    if name == "batch_size":
        return f'<label class="wide">{label} <input name="{name}" type="range" {_reach(values)}> <output></output></label>'
    options = "".join(f"<option>{html.escape(str(value))}</option>" for value in values)
    return f'<label>{label} <select name="{name}">{options}</select></label>'


def _reach(values: Sequence[int]) -> str:
    """A slider's ends: of the numbers themselves, or of their places in a list."""
    if isinstance(values, range):
        return f'min="{values[0]}" max="{values[-1]}"'
    return f'min="0" max="{len(values) - 1}" data-values="{" ".join(map(str, values))}"'


def _asset(ending: str) -> str:
    return resources.files("tinygrad_mem.explore").joinpath("assets", f"explore.{ending}").read_text(encoding="utf-8")

"""``python -m tinygrad_mem explore``: change a training step by hand on a page, and see its memory follow."""

from __future__ import annotations

import logging
import webbrowser
from typing import Any

from rich.console import Console

from ..errors import needs
from ..explore.server import application, serve
from ..explore.setting import StepSetting
from ..models.names import NETWORKS
from .networks import OPTIMIZERS, network_of, steps_in_backward, told_elsewhere
from .one_by_one import check_names


def run(*, network: str, sample: str | None, tokens: str | None, port: int, browser: bool) -> int:
    """Serve the page until Ctrl-C. Returns 0."""
    needs("flask", "explore")
    start = StepSetting(network=network, sample=sample or "", tokens=tokens or "")
    find(start)
    names = [network, *(name for name in NETWORKS if name != network)]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    console = Console(stderr=True, highlight=False)

    def ready(address: str) -> None:
        console.print(f"The page is at {address} ; Ctrl-C ends it.", soft_wrap=True)
        if browser:
            webbrowser.open(address)

    serve(application(find, names, list(OPTIMIZERS), start, told_elsewhere(network)), port, ready)
    return 0


def find(setting: StepSetting) -> tuple[Any, Any, bool]:
    """The network of a setting, its optimizer, and whether this steps in backward."""
    check_names("optimizer", [setting.optimizer], OPTIMIZERS)
    in_backward = steps_in_backward(setting.optimizer, setting.accumulate, setting.precision)
    named = network_of(setting.network, setting.sample or None, setting.tokens or None)
    return named, OPTIMIZERS[setting.optimizer], in_backward

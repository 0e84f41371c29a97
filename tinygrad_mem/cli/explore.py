"""``python -m tinygrad_mem explore``: change a training step by hand on a page, and see its memory follow."""

from __future__ import annotations

import logging
import webbrowser
from typing import Any

from rich.console import Console

from ..errors import ArgumentError, needs
from ..explore.server import application, serve
from ..explore.setting import StepSetting
from ..models.names import NETWORKS
from .networks import IN_BACKWARD, OPTIMIZERS, network_of


def run(*, network: str, sample: str | None, port: int, browser: bool) -> int:
    """Serve the page until Ctrl-C. Returns 0.

    Raises:
        ArgumentError: there is no such network.
        ModuleNotFoundError: Flask is missing.
    """
    needs("flask", "explore")
    start = StepSetting(network=network, sample=sample or "")
    _find(start)
    names = [network, *(name for name in NETWORKS if name != network)]
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    console = Console(stderr=True, highlight=False)

    def ready(address: str) -> None:
        console.print(f"The page is at {address} ; Ctrl-C ends it.", soft_wrap=True)
        if browser:
            webbrowser.open(address)

    serve(application(_find, names, list(OPTIMIZERS), start), port, ready)
    return 0


def _find(setting: StepSetting) -> tuple[Any, Any, bool]:
    """The network of a setting, its optimizer, and whether this steps in backward."""
    if setting.optimizer not in OPTIMIZERS:
        raise ArgumentError(f"there is no optimizer {setting.optimizer!r}: there are {', '.join(OPTIMIZERS)}")
    named = network_of(setting.network, setting.sample or None)
    return named, OPTIMIZERS[setting.optimizer], setting.optimizer in IN_BACKWARD

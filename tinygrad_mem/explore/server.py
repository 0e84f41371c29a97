"""The server of the page (Flask): a prediction for each setting that the page asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any

from ..errors import ArgumentError, TinygradMemError
from .answer import answer
from .page import page
from .setting import DEVICES, PARTS, PRECISIONS, RECOMPUTE, StepSetting

Find = Callable[[StepSetting], tuple[Any, Any, bool]]
"""Finds the network of a setting, its optimizer, and whether this steps in backward."""
_INTRO = "Each change is a prediction: nothing is computed. The address keeps the settings."


def application(find: Find, networks: Sequence[str], optimizers: Sequence[str], start: StepSetting, elsewhere: str = "") -> Any:
    """The Flask application.

    Args:
        networks, optimizers: the names that the page offers.
        start: the setting that it begins with.
        elsewhere: where the network of ``start`` has other bytes: a sentence that takes the place of the command.
    """
    from flask import Flask, Response, jsonify, request

    made, alone = Flask(__name__), Lock()
    made.json.sort_keys = False  # type: ignore[attr-defined]  # categories keep their order
    choices = {"network": networks, "batch_size": range(1, 513), "sample": None, "tokens": None}
    choices |= {"optimizer": optimizers, "precision": PRECISIONS, "recompute": RECOMPUTE, "accumulate": PARTS}
    choices |= {"offload": (False, True), "device": DEVICES}

    @lru_cache(512)
    def found(setting: StepSetting) -> Any:
        other = {"command": f"# {elsewhere}"} if elsewhere and setting.network == start.network else {}
        return {**answer(setting, *find(setting)), **other}

    @made.get("/")
    def whole() -> str:
        return page(choices, start, f'<p class="quiet">{_INTRO}</p>')

    @made.get("/predict")
    def one() -> Response:
        try:
            setting = StepSetting.of(request.args)
            if setting.network not in networks:  # an address must not make this process import another file
                raise ArgumentError(f"{setting.network} is not offered here: python -m tinygrad_mem explore {setting.network}")
            with alone:
                return jsonify(found(setting))
        except Exception as error:  # also of a user's own network
            kind = "" if isinstance(error, TinygradMemError) else f"{type(error).__name__}: "
            return jsonify({"error": f"{kind}{error}"})

    return made


def serve(made: Any, port: int, ready: Callable[[str], None]) -> None:
    """Run the server on this machine alone until Ctrl-C.

    Args:
        port: 0: one that is free.
        ready: called with the page's address when the server listens.
    """
    from werkzeug.serving import make_server

    server = make_server("127.0.0.1", port, made, threaded=True)
    ready(f"http://127.0.0.1:{server.server_port}/")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()

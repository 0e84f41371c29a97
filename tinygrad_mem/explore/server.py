"""The server of the page (Flask): a prediction for each setting that the page asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import lru_cache
from importlib import resources
from threading import Lock
from typing import Any

from ..errors import TinygradMemError
from ..memory.render import sheet
from ..memory.sizes import bytes_text, parse_bytes
from .setting import DEVICES, PRECISIONS, RECOMPUTE, StepSetting, predict

Find = Callable[[StepSetting], tuple[Any, Any, bool]]
"""Finds the network of a setting, its optimizer, and whether this steps in backward."""


def application(find: Find, networks: list[str], optimizers: list[str], start: StepSetting) -> Any:
    """The Flask application.

    Args:
        networks, optimizers: the names that the page offers.
        start: the setting that it begins with.
    """
    from flask import Flask, Response, jsonify, request

    made, alone = Flask(__name__), Lock()
    made.json.sort_keys = False  # type: ignore[attr-defined]  # the largest category comes first
    choices = {"optimizer": optimizers, "precision": list(PRECISIONS), "recompute": list(RECOMPUTE), "device": list(DEVICES)}

    @lru_cache(64)
    def found(setting: StepSetting) -> Any:
        return predict(setting, *find(setting))

    @made.get("/")
    def page() -> str:
        body = _asset("html").replace("@@networks@@", "".join(f"<option>{name}</option>" for name in networks))
        for name, values in choices.items():
            body = body.replace(f"@@{name}@@", "".join(f"<option>{value}</option>" for value in values))
        return sheet.document("The memory of a training step", body, _asset("js"), _asset("css"))

    @made.get("/start")
    def begin() -> Response:
        return jsonify(asdict(start))

    @made.get("/predict")
    def one() -> Response:
        try:
            given = dict(request.args)
            top = int(given.pop("top", 0))
            setting = StepSetting.of(given)
            with alone:
                track = found(setting)
            return jsonify(_answer(setting, track, max(top, track.peak)))
        except (TinygradMemError, ValueError, TypeError) as error:
            return jsonify({"error": str(error)})

    return made


def _asset(ending: str) -> str:
    return resources.files("tinygrad_mem.explore").joinpath("assets", f"explore.{ending}").read_text(encoding="utf-8")


def _answer(setting: StepSetting, track: Any, top: int) -> Mapping[str, Any]:
    """A prediction as the page shows it; ``top``: the highest peak of both settings."""
    reserved, categories = track.pool("end").reserved, {str(name): size for name, size in track.by_category().items()}
    words = ""
    if setting.budget:
        left = parse_bytes(setting.budget) - track.peak
        words = f"fits, {bytes_text(left)} are left" if left >= 0 else f"does not fit: {bytes_text(-left)} too many"
    return {
        "peak": track.peak,
        "peak text": f"{track.peak:,} bytes, {bytes_text(track.peak)}",
        "reserved": reserved,
        "by_category": dict(sorted(categories.items(), key=lambda item: -item[1])),
        "verdict": words,
        "timeline": sheet.timeline("two steps", track, top) + sheet.legend([track]),
        "command": setting.command(),
        "code": setting.code(),
    }


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

"""Checks of the files that a command will write: a wrong name is found before the work, not after it."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ArgumentError, needs


def check_outputs(command: str, html: Path | None = None, picture: Path | None = None, **others: object) -> None:
    """Check the files among a command's options; other options are not looked at."""
    if html is not None and not (command == "tips" and html == Path()):  # tips: '' is no page
        _check_file("--html", html)
    if picture is not None:
        _check_picture(picture)


def words(error: Exception) -> str:
    """The message of an error; for one of the system, without its number and quotes."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def _check_file(option: str, path: Path) -> None:
    if path.is_dir():
        raise ArgumentError(f"{option} {path} is a folder: name a file in it")
    if not path.parent.is_dir():
        raise ArgumentError(f"{option} {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ArgumentError(f"{option} {path} cannot be written")


def _check_picture(path: Path) -> None:
    needs("matplotlib", "--picture")
    from matplotlib.backend_bases import FigureCanvasBase

    _check_file("--picture", path)
    endings, ending = FigureCanvasBase.get_supported_filetypes(), path.suffix[1:].lower()
    if ending not in endings:
        found = f"{ending!r} is none of {', '.join(sorted(endings))}" if ending else "it has no ending, such as .png or .svg"
        raise ArgumentError(f"--picture {path}: {found}")

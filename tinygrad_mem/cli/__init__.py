"""The command line. Its libraries are an extra: without them, one sentence says how to get them."""

import io
import sys

from ..text import PLAINLY


def main() -> None:
    """Entry point of ``python -m tinygrad_mem`` and of the ``tinygrad_mem`` command."""
    try:
        import rich
        import typer
    except ImportError as missing:
        sys.exit(f"tinygrad_mem's command line needs {missing.name}: pip install typer rich")
    from .app import app

    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=PLAINLY)  # what the terminal's encoding lacks is written in signs that it has
    app()

"""The command line. Its libraries are an extra: without them, one sentence says how to get them."""

import sys


def main() -> None:
    """Entry point of ``python -m tinygrad_mem`` and of the ``tinygrad_mem`` command."""
    try:
        import rich
        import typer
    except ImportError as missing:
        sys.exit(f"tinygrad_mem's command line needs {missing.name}: pip install 'tinygrad_mem[train]'")
    from .app import app

    app()

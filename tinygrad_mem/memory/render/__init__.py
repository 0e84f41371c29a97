"""What people see of a track: tables, pictures, pages. Each renderer takes a track and adds no facts."""

from __future__ import annotations

from importlib import import_module


def needs(library: str, extra: str) -> None:
    """Say how to get a library that is an extra.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import_module(library)
    except ModuleNotFoundError as missing:
        if missing.name != library:
            raise  # it is there, and something that it needs is not
        how = f"{library} is not installed, and this needs it: pip install 'tinygrad_mem[{extra}]'"
        raise ModuleNotFoundError(how, name=library) from None

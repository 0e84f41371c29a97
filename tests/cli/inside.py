"""A command of ``python -m tinygrad_mem`` run inside this process: a new process takes half a second to import what is here.

What only a process shows (encodings, terminals, pipes, signals, missing libraries) is tested with one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from typer.testing import CliRunner

from tinygrad_mem.cli.app import app


def run(*arguments: str, cwd: Path | None = None, columns: int = 80) -> CompletedProcess:
    """Its status, stdout and stderr. Modules that it finds in ``cwd`` are not kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(columns))
        known = set(sys.modules)
        if cwd is not None:
            patch.chdir(cwd)
            patch.syspath_prepend(cwd)
        done = CliRunner().invoke(app, [*arguments])
        for name in set(sys.modules) - known:
            if cwd is not None and str(getattr(sys.modules[name], "__file__", None)).startswith(str(cwd)):
                del sys.modules[name]
    return CompletedProcess(arguments, done.exit_code, done.stdout, done.stderr)

"""Ctrl-C while the command ``tinygrad_mem`` imports its libraries: one line and status 130, as later."""

import os
import sys

INTERRUPTED = 130  # the exit status of a shell's command that Ctrl-C has ended


def _is_command() -> bool:
    name, words = sys.argv[0] if getattr(sys, "argv", ()) else "", sys.orig_argv
    if name == "-m":  # Python looks for the module of this name
        return words[words.index("-m") + 1 :][:1] == ["tinygrad_mem"]
    return os.path.splitext(os.path.basename(name))[0] == "tinygrad_mem"


def _end(kind: type[BaseException], error: BaseException, trace: object) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        return sys.__excepthook__(kind, error, trace)  # type: ignore[arg-type]
    sys.stderr.write("tinygrad_mem: interrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)  # Python itself would end by the signal


if _is_command():
    sys.excepthook = _end

"""Docstrings name objects as Sphinx does, ``:class:`~tinygrad_mem.Tensor```: the site shows the last part of the name."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_SESSION = re.compile(r"^>>> .*(?:\n.+)*", re.M)
_ROLE = re.compile(r":\w+:`(~?)([^`]+)`")


def plain(text: str) -> str:
    """A docstring with names instead of roles, and with Python sessions as code."""
    text = _SESSION.sub(lambda session: f"```pycon\n{session[0]}\n```", text)
    return _ROLE.sub(lambda role: f"`{role[2].rpartition('.')[2] if role[1] else role[2]}`", text)


class Roles(Extension):
    """Changes each docstring when it is read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = plain(obj.docstring.value)

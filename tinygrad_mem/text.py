"""Makes text from users (names of modules, files, marks) safe to show on terminals and in pictures."""

from __future__ import annotations

import codecs
import unicodedata

_ESCAPED = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control and format characters, half characters, line and paragraph separators
_PLAIN = {"²": "^2", "±": "+-", "\N{MULTIPLICATION SIGN}": "x", "µ": "u", "→": ">", "…": "...", "·": "."}
_PLAIN |= dict(zip("▁▂▃▄▅▆▇█", "__..==##", strict=True)) | dict(zip("│┃─━┌┐└┘├┤┬┴┼╇╈", "||--+++++++++++", strict=True))


def visible(text: str, keep: str = "") -> str:
    r"""``text`` with escapes (``\x1b``, ``\n``) in place of characters that would move a cursor, hide or turn text around.

    Args:
        keep: characters that are the caller's own, such as the line feeds of a message of several lines.
    """
    if text.isprintable():
        return text
    return "".join(_escape(c) if c not in keep and unicodedata.category(c) in _ESCAPED else c for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _plainly(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_PLAIN.get(c) or _escape(c) for c in found), error.end


PLAINLY = "tinygrad_mem.plainly"
"""The name of a way to encode (``errors=``): signs that an encoding lacks become others, such as ``^2``, or escapes."""
codecs.register_error(PLAINLY, _plainly)

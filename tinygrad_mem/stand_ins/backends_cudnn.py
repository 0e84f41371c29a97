"""cuDNN is not used."""

import contextlib
from collections.abc import Iterator

enabled = benchmark = deterministic = allow_tf32 = False


def is_available() -> bool:
    """Return False."""
    return False


def version() -> None:
    """Return None: cuDNN is not used."""


@contextlib.contextmanager
def flags(
    enabled: bool = False, benchmark: bool = False, deterministic: bool = False, allow_tf32: bool = True, **more: object
) -> Iterator[None]:
    """Do nothing: cuDNN is not used."""
    yield

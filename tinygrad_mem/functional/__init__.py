"""Public functions: a signature, a docstring, one call of the tape; each behind a door that refuses in words."""

import importlib
import pkgutil

from . import door

_families = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__) if m.name != "methods"]
door.guard(*[family for family in _families if family is not door])

from . import methods as methods  # noqa: E402  (the table of methods is made of guarded functions)

"""The cases. Each is a file, found by its name."""

from importlib import import_module
from pkgutil import iter_modules

from ..case import Case

CASES: dict[str, Case] = {each.name: import_module(f".{each.name}", __package__).CASE for each in iter_modules(__path__)}
"""By name, in alphabetical order."""

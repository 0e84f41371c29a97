"""One module a family, each with ``CASES``: a registered op without a row here fails the suite."""

import importlib
import pkgutil

from tests.case import OpCase

CASES: list[OpCase] = [
    case
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__))
    for case in importlib.import_module(f"{__name__}.{module}").CASES
]

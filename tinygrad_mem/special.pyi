"""Written by ``python -m tests.stubs --write``: do not edit."""

# ruff: noqa

from .functional.choose import xlogy as xlogy
from .functional.reduce import logsumexp as logsumexp
from .functional.softmax import log_softmax as log_softmax
from .functional.softmax import softmax as softmax
from .functional.unary import erf as erf
from .functional.unary import erfc as erfc
from .functional.unary import erfinv as erfinv
from .functional.unary import exp2 as exp2
from .functional.unary import expm1 as expm1
from .functional.unary import log1p as log1p
from .functional.unary import round as round

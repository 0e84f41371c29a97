"""Written by ``python -m tests.stubs --write``: do not edit."""

# ruff: noqa

from .functional.linalg import matmul as matmul
from .functional.linalg import solve_triangular as solve_triangular
from .functional.norms import norm as norm
from .functional.norms import vector_norm as vector_norm

"""Public functions: a signature, a docstring, one call of the tape."""

from . import methods as methods

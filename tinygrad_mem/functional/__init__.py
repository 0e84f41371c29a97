"""Public functions: a signature, a docstring, one call of ``apply``. ``@public`` says under which names they are public.

Importing this room runs the decorators. They add methods to ``Tensor``, and list the functions that ``tinygrad_mem``,
``nn.functional``, ``linalg`` and ``special`` export. Type checkers read the stubs (``*.pyi``) in the same folders, which
``python -m tests.stubs --write`` makes.
"""

from importlib import import_module
from pkgutil import iter_modules

for _family in iter_modules(__path__):
    import_module(f"{__name__}.{_family.name}")

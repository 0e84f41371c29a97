"""``torch.nn.functional``: the functions that name it in their ``@public``; ``functional.pyi`` lists them for type checkers."""

from .. import absent as _absent
from ..functional.door import PUBLIC as _PUBLIC

globals().update(_PUBLIC["nn.functional"])
__getattr__ = _absent.refuses("nn.functional")

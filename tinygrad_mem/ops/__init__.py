"""Differentiable rules on raw arrays, a file a family. They use neither tensors nor the tape.

``torch.ops``'s names are answered here too: operations of other libraries, which their published files ask for.
"""

from .. import absent as _absent


def load_library(path: str) -> None:
    """Not offered: a library of operations is compiled for PyTorch's own tensors.

    Raises:
        OSError: always, as where PyTorch finds no such library.
    """
    raise OSError(f"ops.load_library: {path} holds operations compiled for PyTorch's tensors: write them with tensor functions")


__getattr__ = _absent.refuses("ops")

"""Differentiable rules on raw arrays, a file a family. They know no tensor and no tape.

``torch.ops``'s names are answered here too: operations of other libraries, which their published files ask for.
"""


def load_library(path: str) -> None:
    """Not offered: a library of operations is compiled for PyTorch's own tensors.

    Raises:
        OSError: always, as where PyTorch finds no such library.
    """
    raise OSError(f"ops.load_library: {path} holds operations compiled for PyTorch's tensors: write them with tensor functions")


def __getattr__(name: str) -> object:
    from ..absent import lacking

    raise lacking(
        name, f"ops.{name} is not offered: operations compiled for PyTorch's tensors: use the public function of that name"
    )

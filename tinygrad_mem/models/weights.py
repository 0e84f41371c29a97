"""Published weights of a language model: safetensors files with the names of Hugging Face's hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from .. import Tensor, load, nn, no_grad
from ..errors import StateDictError

_EXPERT = re.compile(r"(.*\.)(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight")
_PLACES = {
    "w1": ("gate_up_proj", 0), "gate_proj": ("gate_up_proj", 0),
    "w3": ("gate_up_proj", 1), "up_proj": ("gate_up_proj", 1),
    "w2": ("down_proj", None), "down_proj": ("down_proj", None),
}  # fmt: skip
"""The matrix of one expert in a file -> the parameter with those of all experts, and its half there."""


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Copy published weights into the parameters of ``model``, converted to their dtype.

    Files are read one after the other: besides the model, the content of one file is in memory.

    Args:
        path: a ``.safetensors`` file, or a folder with one, or with several and ``model.safetensors.index.json``.

    Raises:
        StateDictError: a tensor that the model has no place for, of another shape, or a parameter that no file has; the
            parameters that were read before keep the new values. FileNotFoundError: there is no such file.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    missing = set(parameters)
    same = {id(p): {n for n, q in parameters.items() if q is p} for p in parameters.values()}  # tied ones come once
    experts: dict[str, int] = {}
    for file in _files(Path(path)):
        for name, tensor in load(file).items():
            target, place = _place(name, parameters)
            if target is None or place is None:
                raise StateDictError(f"{file}: {type(model).__name__} has no parameter for {name!r}")
            if place.shape != tensor.shape:
                raise StateDictError(f"{file}: {name} has shape {list(tensor.shape)}, the model's has {list(place.shape)}")
            with no_grad():
                place.copy_(tensor)
            if _EXPERT.fullmatch(name):
                experts[target] = experts.get(target, 0) + tensor.numel()
            if experts.get(target, parameters[target].numel()) == parameters[target].numel():
                missing -= same[id(parameters[target])]
    if missing:
        raise StateDictError(f"{path}: there are no values for {', '.join(sorted(missing))}")


def _files(path: Path) -> Iterator[Path]:
    index = path / "model.safetensors.index.json"
    if path.suffix == ".safetensors":
        yield path
    elif index.is_file():
        for name in sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())):
            yield path / name
    else:
        yield path / "model.safetensors"


def _place(name: str, parameters: Mapping[str, Tensor]) -> tuple[str | None, Tensor | None]:
    """The parameter that a tensor of a file belongs to, and the part of it."""
    if found := _EXPERT.fullmatch(name):
        parameter, half = _PLACES[found[3]]
        target = f"{found[1]}mlp.experts.{parameter}"
        whole = parameters.get(target)
        if whole is None or int(found[2]) >= whole.shape[0]:
            return None, None
        place = whole.detach()[int(found[2])]
        return target, place if half is None else place.chunk(2)[half]
    target = name.replace(".block_sparse_moe.gate.", ".mlp.gate.")
    return (target, parameters[target].detach()) if target in parameters else (None, None)

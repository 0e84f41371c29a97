"""Stand-ins: modules of PyTorch's that published files import, and that have nothing to do here. All of them are in this room.

``PATHS`` says under which of PyTorch's paths each is imported: ``tinygrad_mem.fx.node`` is ``stand_ins/fx.py``. A path is an
alias of the whole module, so several paths may be one module: it has the names of all of them. To add a path, add it to the
table; to add a name, write it into the module.
"""

from __future__ import annotations

import sys
from importlib import import_module

PATHS = {
    "._C": "_C",
    ".compiler": "compiler",
    "._dynamo": "_dynamo _dynamo.eval_frame _dynamo.utils _dynamo._trace_wrapped_higher_order_op",
    ".ao": "ao ao.nn",
    ".quantization": "quantization ao.quantization",
    ".backends_cuda": "backends.cuda",
    ".backends_cudnn": "backends.cudnn",
    ".backends_mps": "backends.mps",
    ".cuda_amp": "cuda.amp",
    ".distributed": "distributed",
    ".flex_attention": "nn.attention.flex_attention",
    ".fx": "fx fx.graph fx.graph_module fx.node fx.proxy",
    ".hub": "hub utils.model_zoo",
    ".jit": "jit jit.annotations",
    ".library": "library",
    ".multiprocessing": "multiprocessing",
    ".onnx": "onnx onnx.symbolic_helper onnx.symbolic_opset11",
    ".nn_modules": "nn.modules "
    "nn.modules.activation nn.modules.batchnorm nn.modules.channelshuffle nn.modules.container nn.modules.conv "
    "nn.modules.distance nn.modules.dropout nn.modules.flatten nn.modules.fold nn.modules.instancenorm nn.modules.linear "
    "nn.modules.loss nn.modules.module nn.modules.normalization nn.modules.padding nn.modules.pixelshuffle "
    "nn.modules.pooling nn.modules.sparse nn.modules.transformer nn.modules.upsampling nn.modules.utils",
    "..utils.data": "utils.data.dataloader utils.data.dataset utils.data.distributed utils.data.sampler",
}
"""Module, from this room on -> the paths under ``tinygrad_mem`` at which it is found as well."""


def install() -> None:
    """Put each module at its paths. The package calls it once, when all rooms are imported."""
    root = __name__.rpartition(".")[0]
    for home, paths in PATHS.items():
        module = import_module(home, __name__)
        for path in paths.split():
            place, _, name = f"{root}.{path}".rpartition(".")
            sys.modules[f"{place}.{name}"] = module
            if place in sys.modules:  # the library runs without some rooms
                setattr(sys.modules[place], name, module)

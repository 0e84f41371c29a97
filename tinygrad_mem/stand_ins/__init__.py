"""Stand-ins for modules of PyTorch that published files import, and that have nothing to do here.

``PATHS`` lists the paths under which each can be imported: ``tinygrad_mem.fx.node`` is ``stand_ins/fx.py``. A path is an alias
of a whole module. Several paths may lead to one module, which has the names of all of them. To add a path, add it to the table;
to add a name, write it into the module. A module refuses other names if ``absent.py`` has answers for one of its paths.
"""

from __future__ import annotations

import sys
from importlib import import_module

from .. import absent
from . import refused

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
    ".cuda_streams": "cuda.streams",
    ".dtensor": "distributed.tensor.placement_types distributed.tensor._utils distributed._functional_collectives "
    "distributed.checkpoint.hf_storage distributed._composable",
    ".flex_attention": "nn.attention.flex_attention",
    ".fx": "fx fx.graph fx.graph_module fx.node fx.proxy",
    ".hub": "hub utils.model_zoo",
    ".jit": "jit jit.annotations",
    ".library": "library",
    ".multiprocessing": "multiprocessing",
    ".onnx": "onnx onnx.symbolic_helper onnx.symbolic_opset11",
    ".overrides": "overrides",
    ".nn_modules": "nn.modules "
    "nn.modules.activation nn.modules.batchnorm nn.modules.channelshuffle nn.modules.container nn.modules.conv "
    "nn.modules.distance nn.modules.dropout nn.modules.flatten nn.modules.fold nn.modules.instancenorm nn.modules.linear "
    "nn.modules.loss nn.modules.module nn.modules.normalization nn.modules.padding nn.modules.pixelshuffle "
    "nn.modules.pooling nn.modules.sparse nn.modules.transformer nn.modules.upsampling nn.modules.utils",
    "..distributed.fsdp": "distributed._composable.fsdp",
    "..utils.data": "utils.data.dataloader utils.data.dataset utils.data.distributed utils.data.sampler",
}
"""Module, relative to this folder -> its paths under ``tinygrad_mem``."""
fft, func, _higher_order_ops = (refused.module(name) for name in ("fft", "func", "_higher_order_ops"))
_REFUSED = {
    fft: "fft",
    func: "func",
    refused.module("distributed.fsdp.wrap"): "distributed.fsdp.wrap",
    _higher_order_ops: "_higher_order_ops _higher_order_ops.associative_scan",
}


def install() -> None:
    """Register each module under its paths. The package calls this once, when everything is imported."""
    root = __name__.rpartition(".")[0]
    modules = {import_module(home, __name__): paths for home, paths in PATHS.items()}
    for module, paths in (modules | _REFUSED).items():
        for path in paths.split():
            place, _, name = f"{root}.{path}".rpartition(".")
            sys.modules[f"{place}.{name}"] = module
            if path in absent.ANSWERS:
                module.__getattr__ = absent.refuses(path)  # type: ignore[method-assign]
            # The library runs without some rooms; a function that has its file's name stays where it is.
            if place in sys.modules and not callable(vars(sys.modules[place]).get(name)):
                setattr(sys.modules[place], name, module)

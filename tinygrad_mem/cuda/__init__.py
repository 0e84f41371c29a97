"""The names of ``torch.cuda`` that scripts use. Those that need no device can be called without a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from .. import absent as _absent
from .. import scope
from ..devices import cuda_problem
from ..devices import device as Device
from ..errors import NotOfferedError
from ..errors import OutOfMemoryError as OutOfMemoryError
from ..functional.typed import family as _family
from ..stand_ins import cuda_amp as amp
from ..stand_ins.cuda_streams import *
from . import memory as memory
from .memory import *
from .memory import gpu_of, require

globals().update(_family("cuda"))  # cuda.FloatTensor and its family


def is_available() -> bool:
    """True if tensors can live on a GPU here; in a prediction, if it is one for a GPU."""
    dry = scope.local.dry
    return cuda_problem() is None if dry is None else dry.like == "cuda"


def is_initialized() -> bool:
    """True if a GPU can be used. It is opened when it is first used."""
    return is_available()


def init() -> None:
    """Do nothing: a GPU is opened when it is first used."""


def device_count() -> int:
    """The number of GPUs; in a prediction for a GPU, 1."""
    if scope.local.dry is not None or not is_available():
        return int(is_available())
    import cupy

    return cupy.cuda.runtime.getDeviceCount()


def current_device() -> int:
    """The GPU that ``"cuda"`` means: the first. Raises: DeviceError: there is none, outside of a prediction."""
    if scope.local.dry is None:
        require("current_device")
    return 0


def set_device(device: Any) -> None:
    """Do nothing for the first GPU, which is what ``"cuda"`` means.

    Raises:
        DeviceError: there is none.
        NotOfferedError: another GPU.
    """
    index = device if isinstance(device, int) else Device(device).index or 0
    if index > 0:
        raise NotOfferedError(f"cuda.set_device({index}): 'cuda' is the first GPU: name another as device('cuda:{index}')")
    if index == 0:
        current_device()


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """``name``, ``major``, ``minor``, ``total_memory`` (bytes) and ``multi_processor_count`` of a GPU, the first unless named.

    Raises:
        DeviceError: there is none.
    """
    require("get_device_properties")
    import cupy

    found = cupy.cuda.runtime.getDeviceProperties(gpu_of(device).index or 0)
    return SimpleNamespace(
        name=found["name"].decode(),
        major=found["major"],
        minor=found["minor"],
        total_memory=found["totalGlobalMem"],
        multi_processor_count=found["multiProcessorCount"],
    )


def get_device_name(device: Any = None) -> str:
    """A GPU's name. Raises: DeviceError: there is none."""
    return get_device_properties(device).name


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """A GPU's compute capability, such as (9, 0). Raises: DeviceError: there is none."""
    found = get_device_properties(device)
    return found.major, found.minor


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True if there is a GPU."""
    return is_available()


def manual_seed(seed: int) -> None:
    """Seed the generator of the first GPU."""
    if is_available():
        Device("cuda").generator.manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all GPUs."""
    for index in range(device_count()):
        Device("cuda", index).generator.manual_seed(seed)


def synchronize(device: Any = None) -> None:
    """Wait until a GPU (by default the first) has done its work. Raises: DeviceError: there is none."""
    gpu_of(device).synchronize()


__getattr__ = _absent.refuses("cuda")

"""The origin of each stack of a snapshot: the op, the user's line, and the part of a training step.

A stack has frames of Python, and of C++ if those were recorded too (``stacks="all"``), the innermost first. Each frame is
examined once, and then each stack once: a recording of a million events has a few thousand.

Source: PyTorch 2.0 to 2.13, the names in ``torch/csrc/autograd/engine.cpp``, ``torch/optim``, ``torch/nn/modules/module.py``,
``aten/src/ATen/cuda/CublasHandlePool.cpp``; ``torch/csrc/profiler/combined_traceback.cpp`` for the order of frames.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .unpickle import Stacks

Frame = tuple[str, int, str]
_SHORT = 255  # the largest number in one byte


class Origin(NamedTuple):
    """The facts that one stack shows."""

    phase: str = ""  # forward, backward, recompute, optimizer, data; user: none of these; "": unknown
    sure: bool = True  # the phase is sure, and not only likely
    sign: str = ""  # the mark of the block itself, one of SIGNS
    op: str = ""  # the innermost op of ATen, "" if there is none
    line: str = ""  # the innermost line of the user's own code, "" if there is none


SIGNS = ("", "workspace", "moved", "built", "state", "accumulated", "zero_grad", "copied")
"""The marks of a block: none; a library's workspace; made by ``Module.to``, by a layer, by an optimizer as its state; a new
``.grad``; freed by ``zero_grad``; a copy to the device."""
_TORCH = re.compile(r"(?:^|/)torch/(?!.*site-packages)")
_LIBRARY = re.compile(r"(?:^|/)(?:site-packages|dist-packages|lib/python3[^/]*)/|^<frozen |^<string>|^<eval_with_key>")
_OP = re.compile(r"\bat::_ops::(\w+)::")
_NODE = re.compile(r"\btorch::autograd::generated::(\w+)::apply\b")
_ENGINE = re.compile(r"\btorch::autograd::(?:Engine|python::PythonEngine|ReadyQueue)::|\bTHPEngine_run_backward\b")
_LIBRARIES = re.compile(r"cublas|cudnn|cusolver|cusparse|\bcub::|workspace|\bthrust::|ThrustAllocator|nccl|\bc10d::", re.I)
_TENSOR = re.compile(r"\bempty_(?:cuda|strided_cuda|generic|strided_generic)\b|\bresize_(?:impl|bytes)_cuda|\bat::_ops::")
_CALLS = {"_call_impl", "_wrapped_call_impl", "_slow_forward", "__call__"}
_MOVES = {"_apply", "to", "cuda", "half", "bfloat16", "float", "double", "to_empty"}
_NO_STEP = {"zero_grad", "__init__", "add_param_group", "load_state_dict", "state_dict", "register_step_pre_hook"}
_COPIES = {"_to_copy", "copy_", "to_dtype", "to_device", "to_dtype_layout", "to_other"}


def _windows(filename: str) -> str:
    return filename.replace("\\", "/")


class _Facts(NamedTuple):
    """The facts that one frame shows, whatever called it."""

    python: bool
    torch: bool  # PyTorch's own Python
    users: bool  # the user's own code, and not a library's
    library: bool  # in a library of kernels, or its workspace
    tensor: bool  # it makes a tensor
    phase: str
    sure: bool
    sign: str
    op: str


def _facts(frame: Frame) -> _Facts:
    filename, _, name = _windows(frame[0]), frame[1], frame[2]
    if not filename.endswith(".py") and not filename.startswith("<"):
        return _facts_of_cpp(name)
    torch = bool(_TORCH.search(filename))
    users = not torch and not _LIBRARY.search(filename)
    phase, sure, sign = _python_phase(filename, name) if torch else _users_phase(filename, name)
    op = name if filename.endswith("torch/nn/functional.py") else ""
    return _Facts(True, torch, users, False, False, phase, sure, sign, op)


def _facts_of_cpp(name: str) -> _Facts:
    op = _OP.search(name)
    node = _NODE.search(name)
    phase = "backward" if node or _ENGINE.search(name) else ""
    sign = "accumulated" if "torch::autograd::AccumulateGrad::" in name else ""
    called = op[1] if op else node[1] if node else ""
    return _Facts(False, False, False, bool(_LIBRARIES.search(name)), bool(_TENSOR.search(name)), phase, True, sign, called)


def _python_phase(filename: str, name: str) -> tuple[str, bool, str]:
    """The phase and sign of a frame in one of PyTorch's own files."""
    if "torch/optim/" in filename:
        if name == "zero_grad":
            return "user", True, "zero_grad"
        return ("", True, "") if name in _NO_STEP else ("optimizer", True, "state" if name == "_init_group" else "")
    if filename.endswith("torch/nn/modules/module.py"):
        if name in _CALLS:
            return "forward", True, ""
        return "", True, "zero_grad" if name == "zero_grad" else "moved" if name in _MOVES else ""
    if filename.endswith("torch/nn/init.py") or (name in ("__init__", "reset_parameters") and "torch/nn/" in filename):
        return "", True, "built"
    if "torch/utils/data/" in filename:
        return "data", True, ""
    if name == "_engine_run_backward" or (
        name == "backward" and filename.endswith(("torch/_tensor.py", "autograd/__init__.py"))
    ):
        return "backward", True, ""
    return ("forward", True, "") if name == "forward" and "torch/nn/" in filename else ("", True, "")


def _users_phase(filename: str, name: str) -> tuple[str, bool, str]:
    """The same for other files, whose names alone show little."""
    if name == "forward":
        return "forward", True, ""
    if name == "step" and "optim" in filename.lower():
        return "optimizer", False, ""
    return "", True, ""


class Origins:
    """The origins of all stacks of a snapshot, each computed when it is first needed.

    Attributes:
        has_cpp: True if frames of C++ were recorded too.
    """

    def __init__(self, stacks: Stacks) -> None:
        self._stacks = stacks
        self._facts = [_facts(frame) for frame in stacks.frames]
        self.has_cpp = not all(facts.python for facts in self._facts)
        self._lines = self._named()
        self._found: dict[int, Origin] = {}

    def _named(self) -> list[str]:
        """``"train.py:12 step"`` for each frame, without the common folder of the user's files."""
        frames = self._stacks.frames
        users = {_windows(frame[0]) for frame, facts in zip(frames, self._facts, strict=True) if facts.users}
        folders = [posixpath.dirname(name) for name in users if name.startswith("/")]
        folder = posixpath.commonpath(folders).rstrip("/") + "/" if folders else ""
        return [f"{_windows(name).removeprefix(folder)}:{line} {function}" for name, line, function in frames]

    def of(self, stack: int) -> Origin:
        """The origin of the stack of this number."""
        found = self._found.get(stack)
        if found is None:
            found = self._found[stack] = self._origin(self._stacks.stacks[stack])
        return found

    def each(self, stacks: np.ndarray, says: Callable[[Origin], int]) -> np.ndarray:
        """For each stack number, a number below 2**32 that ``says`` computes from its origin."""
        seen = np.zeros(len(self._stacks.stacks), bool)
        seen[stacks] = True
        found = np.zeros(len(seen), np.uint32)
        numbers = np.flatnonzero(seen)
        found[numbers] = [says(self.of(number)) for number in numbers.tolist()]
        return (found if found.max(initial=0) > _SHORT else found.astype(np.uint8))[stacks]

    def _origin(self, stack: tuple[int, ...]) -> Origin:
        facts = [self._facts[frame] for frame in stack]
        phase, sure = _phase(facts)
        op = next((f.op for f in facts if f.op and not f.python and not f.op.startswith(("empty", "new_empty"))), "")
        op = op or next((f.op for f in facts if f.op and not f.python), "") or next((f.op for f in facts if f.op), "")
        users = (frame for frame in stack if self._facts[frame].users)
        others = (frame for frame in stack if self._facts[frame].python and not self._facts[frame].torch)
        line = next(users, None)
        line = next(others, None) if line is None else line
        return Origin(phase, sure, _sign(facts, phase, op), op, "" if line is None else self._lines[line])


def _phase(facts: list[_Facts]) -> tuple[str, bool]:
    """The innermost part of a step in a stack. A forward inside a backward is a recomputation."""
    said = [(f.phase, f.sure) for f in facts if f.phase]
    python = [f for f in facts if f.python]
    if python and python[-1].torch and not any(phase == "backward" for phase, _ in said):
        said.append(("backward", False))  # the user's program did not call this: it is autograd's own thread
    if not said:
        return "user" if python else "", True
    phase, sure = said[0]
    if phase == "forward" and said[-1][0] == "backward":
        return "recompute", said[-1][1]
    return phase, sure


def _sign(facts: list[_Facts], phase: str, op: str) -> str:
    """The mark of the block that this stack allocated or freed."""
    tensor = next((i for i, f in enumerate(facts) if f.tensor), len(facts))
    if any(f.library for f in facts[:tensor]):
        return "workspace"
    at, said = next(((i, f.sign) for i, f in enumerate(facts) if f.sign), (0, ""))
    if said == "accumulated" and any(f.python or f.library for f in facts[:at]):
        return ""  # its hook allocated
    return said or ("copied" if op in _COPIES and phase in ("user", "data") else "")

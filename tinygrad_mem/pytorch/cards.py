"""Graphics cards: the memory that CUDA reports, which is less than the description says, what kernels are chosen by, and the
bytes that a process needs beside PyTorch's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ArgumentError

_GIB = 1 << 30
_THREADS = {(7, 0): 2048, (7, 5): 1024, (8, 0): 2048, (8, 6): 1536, (8, 9): 1536, (9, 0): 2048, (10, 0): 2048, (12, 0): 1536}
"""Threads that run at once on a multiprocessor, by compute capability. Source: CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability"."""


@dataclass(frozen=True)
class GraphicsCard:
    """A card."""

    name: str
    sold_as: int  # gigabytes in its description
    # hundredths of a GiB, as in PyTorch's out-of-memory message ("a total capacity of 14.56 GiB"); the least that was found if
    # drivers and settings (ECC) differ
    capacity: int
    capability: tuple[int, int]  # compute capability; (9, 0) is Hopper
    processors: int  # multiprocessors: cores in its description, divided by 64 (V100, T4, RTX 2080 Ti, A100) or 128
    source: str  # the thread with the message

    @property
    def bytes(self) -> int:
        """The least number of bytes that rounds to ``capacity``."""
        return -(-(2 * self.capacity - 1) * _GIB // 200)

    @property
    def room(self) -> int:
        """The bytes that are left for PyTorch beside the largest known context."""
        return self.bytes - CONTEXT[1]

    @property
    def threads(self) -> int:
        """Threads that run at once on a multiprocessor."""
        return _THREADS[self.capability]


CARDS = (
    GraphicsCard("RTX 3080", 10, 978, (8, 6), 68, "github.com/zai-org/CogVideo/issues/34"),
    GraphicsCard("RTX 2080 Ti", 11, 1076, (7, 5), 68, "github.com/JDAI-CV/image-captioning/issues/11"),
    GraphicsCard("RTX 3060", 12, 1175, (8, 6), 28, "github.com/Kunhao-Liu/StyleGaussian/issues/12"),
    GraphicsCard("T4", 16, 1456, (7, 5), 40, "github.com/Zheng-Chong/CatVTON/issues/133"),
    GraphicsCard("V100 16GB", 16, 1578, (7, 0), 80, "github.com/kchengiva/Shift-GCN/issues/34"),
    GraphicsCard("RTX A4000", 16, 1561, (8, 6), 48, "github.com/DengKaiCQ/VGGT-Long/issues/6"),
    GraphicsCard("A10", 24, 2199, (8, 6), 72, "github.com/zai-org/CogVLM/issues/236"),
    GraphicsCard("L4", 24, 2203, (8, 9), 58, "github.com/ArcInstitute/evo2/issues/190"),
    GraphicsCard("RTX 3090", 24, 2370, (8, 6), 82, "github.com/Lightning-AI/lit-llama/issues/137"),
    GraphicsCard("RTX 4090", 24, 2352, (8, 9), 128, "github.com/Soul-AILab/SoulX-FlashTalk/issues/5"),
    GraphicsCard("V100 32GB", 32, 3174, (7, 0), 80, "github.com/liucongg/ChatGLM-Finetuning/issues/73"),
    GraphicsCard("RTX 5090", 32, 3137, (12, 0), 170, "github.com/Wan-Video/Wan2.1/issues/465"),
    GraphicsCard("A100 40GB", 40, 3950, (8, 0), 108, "github.com/TianheWu/CoSeR/issues/10"),
    GraphicsCard("L40", 48, 4440, (8, 9), 142, "github.com/NVlabs/Eagle/issues/68"),
    GraphicsCard("RTX 6000 Ada", 48, 4443, (8, 9), 142, "github.com/DINGYANB/MTVCrafter/issues/21"),
    GraphicsCard("A100 80GB", 80, 7925, (8, 0), 108, "github.com/HiDream-ai/VAREdit/issues/6"),
    GraphicsCard("H100", 80, 7911, (9, 0), 132, "github.com/vllm-project/vllm/issues/27508"),
    GraphicsCard("H200", 141, 13972, (9, 0), 132, "messages in public logs: 139.72 to 139.81 GiB"),
    GraphicsCard("B200", 180, 17835, (10, 0), 148, "github.com/unslothai/unsloth/issues/3411"),
)
COMMON = ("T4", "RTX 4090", "A100 40GB", "L40", "H100", "H200")
"""One card of each size."""
USUAL = next(card for card in CARDS if card.name == "A100 80GB")
"""The card of a prediction that names none."""

CONTEXT = (80 << 20, 530 << 20)
"""Bytes of a process that PyTorch does not count: the CUDA context, and loaded kernels and libraries.

They follow from PyTorch's out-of-memory messages: in use by the process, less allocated, less reserved but unallocated. These
are the least and the most of them, rounded outwards; any further library (NCCL, ONNX, JAX) adds to them: T4 0.10 and 0.14 GiB
(hpcaitech/Open-Sora#697, FoundationVision/GenerateU#10), RTX 4090 0.44, 0.46 and 0.49 (Soul-AILab/SoulX-FlashTalk#5,
pinokiofactory/flux-webui#11, 3DTopia/Phidias-Diffusion#8), 0.30 on 31.47 GiB (murong-xu/CADS#4), RTX 6000 Ada 0.42
(DINGYANB/MTVCrafter#21), A100 0.40 and 0.49 (HiDream-ai/VAREdit#6, TianheWu/CoSeR#10), 0.50 on 79.33 GiB
(Tianhao-Qi/Mask2DiT#4).
"""


def card_of(name: str) -> GraphicsCard:
    """The card with a name such as ``"RTX 4090"``; spaces and case do not matter. ``""``: :data:`USUAL`.

    Raises:
        ArgumentError: it is not in the table, or the name fits several.
    """
    if not name:
        return USUAL
    wanted = _plain_name(name)
    found = [card for card in CARDS if _plain_name(card.name) == wanted] or [
        card for card in CARDS if wanted in _plain_name(card.name)
    ]
    if len(found) != 1 or not wanted:
        names = ", ".join(card.name for card in found or CARDS)
        what = "is several" if found else "is not in the table"
        raise ArgumentError(
            f"the GPU {name!r} {what}: name one of {names}; or none, and give its bytes as the budget (capacity)"
        )
    return found[0]


def _plain_name(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())

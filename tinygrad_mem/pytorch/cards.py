"""Graphics cards: the memory that CUDA reports, which is less than the description says, and the bytes that a process needs
beside PyTorch's."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..errors import ArgumentError

_GIB = 1 << 30


@dataclass(frozen=True)
class GraphicsCard:
    """A card.

    Attributes:
        sold_as: gigabytes in its description.
        capacity: hundredths of a GiB, as in PyTorch's out-of-memory message ("a total capacity of 14.56 GiB"); the least that
            was found if drivers and settings (ECC) differ.
        source: the thread with the message.
    """

    name: str
    sold_as: int
    capacity: int
    source: str

    @property
    def bytes(self) -> int:
        """The least number of bytes that rounds to ``capacity``."""
        return -(-(2 * self.capacity - 1) * _GIB // 200)


CARDS = (
    GraphicsCard("T4", 16, 1456, "github.com/Zheng-Chong/CatVTON/issues/133"),
    GraphicsCard("RTX A4000", 16, 1561, "github.com/DengKaiCQ/VGGT-Long/issues/6"),
    GraphicsCard("A10", 24, 2199, "github.com/zai-org/CogVLM/issues/236"),
    GraphicsCard("RTX 3090", 24, 2370, "github.com/Lightning-AI/lit-llama/issues/137"),
    GraphicsCard("RTX 4090", 24, 2352, "github.com/Soul-AILab/SoulX-FlashTalk/issues/5"),
    GraphicsCard("RTX 5090", 32, 3137, "github.com/Wan-Video/Wan2.1/issues/465"),
    GraphicsCard("A100 40GB", 40, 3950, "github.com/TianheWu/CoSeR/issues/10"),
    GraphicsCard("L40", 48, 4440, "github.com/NVlabs/Eagle/issues/68"),
    GraphicsCard("RTX 6000 Ada", 48, 4443, "github.com/DINGYANB/MTVCrafter/issues/21"),
    GraphicsCard("A100 80GB", 80, 7925, "github.com/HiDream-ai/VAREdit/issues/6"),
    GraphicsCard("H100", 80, 7911, "github.com/vllm-project/vllm/issues/27508"),
    GraphicsCard("H200", 141, 13972, "messages in public logs: 139.72 to 139.81 GiB"),
)
COMMON = ("T4", "RTX 4090", "A100 40GB", "L40", "H100", "H200")
"""One card of each size."""

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
    """The card with a name such as ``"RTX 4090"``; spaces and case do not matter.

    Raises:
        ArgumentError: it is not in the table, or the name fits several.
    """
    wanted = _plain(name)
    found = [card for card in CARDS if _plain(card.name) == wanted] or [card for card in CARDS if wanted in _plain(card.name)]
    if len(found) != 1 or not wanted:
        names = ", ".join(card.name for card in found or CARDS)
        what = "is several" if found else "is not in the table"
        raise ArgumentError(f"--gpu {name!r} {what}: name one of {names}; or give --budget")
    return found[0]


def _plain(name: str) -> str:
    return re.sub(r"nvidia|geforce|tesla|[^a-z0-9]", "", name.lower())

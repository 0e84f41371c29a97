"""The same numbers as PyTorch's own ranks under gloo: losses, parameters, buffers, buckets, pipelines, ZeRO 1 to 3."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed

from tests.distributed.ranks import BESIDE_TORCH, passes


@pytest.mark.parametrize("ranks", BESIDE_TORCH)
def test_the_numbers_are_those_of_pytorch(ranks: int, tmp_path: Path):
    """In float64, to 1e-10, in the same processes."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no torch.distributed with gloo")
    said = passes(ranks, "beside_torch", str(tmp_path / "store"), timeout=240)
    checks = ("same_numbers", "same_buckets", "same_pipelines", "same_stages")
    assert sorted(said.splitlines()) == sorted(f"{check} on rank {rank}" for check in checks for rank in range(ranks))

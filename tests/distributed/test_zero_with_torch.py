"""ZeRO 1 to 3 beside PyTorch's own under gloo: the same losses, norms and parameters on every rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch.distributed

from tests.distributed.programs.with_torch import Network
from tests.distributed.ranks import BESIDE_TORCH, ENVIRONMENT, PROGRAMS, passes


def theirs(ranks: int, given: Path, folder: Path) -> list[dict]:
    """What PyTorch's ranks end with."""
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("this PyTorch has no torch.distributed with gloo")
    command = [sys.executable, str(PROGRAMS / "with_torch.py")]
    files = [folder / f"theirs{rank}.npz" for rank in range(ranks)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(folder / "store"), str(given), str(files[rank])],
            env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    try:
        for process in processes:
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 0, said[-4000:]
    finally:
        for process in processes:
            process.kill()
    return [dict(np.load(file)) for file in files]


@pytest.mark.parametrize("ranks", BESIDE_TORCH)
def test_equal_to_pytorchs(ranks: int, tmp_path: Path):
    given = tmp_path / "given.npz"
    torch.manual_seed(0)
    np.savez(given, **{name: value.numpy() for name, value in Network().double().state_dict().items()})
    passes(ranks, "beside_torch", str(given), str(tmp_path))
    wanted = theirs(ranks, given, tmp_path)
    for rank in range(ranks):
        found = dict(np.load(tmp_path / f"ours{rank}.npz"))
        assert found.keys() == wanted[rank].keys()
        for key, value in wanted[rank].items():
            assert found[key].shape == value.shape, key
            np.testing.assert_allclose(found[key], value, rtol=1e-10, atol=1e-12, err_msg=f"rank {rank}: {key}")

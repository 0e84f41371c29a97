"""Hugging Face's models from a configuration, on the CPU: the predicted peak is that of PyTorch's allocator, to the byte."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.profiles import some
from tests.pytorch.hugging_face import MODELS, PROGRAMS, program
from tests.pytorch_memory import pytorch_peak
from tinygrad_mem import pytorch

pytest.importorskip("transformers")
pytest.importorskip("peft")
ROWS = some(PROGRAMS, [("GPT-2", "SGD"), ("llama", "forward"), ("opt", "SGD"), ("llama with LoRA", "Adam")])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "way"), ROWS, ids=str)
def test_the_peak_is_that_of_pytorchs_allocator(name: str, way: str):
    predicted = pytorch.predict(program, name, way, device="cpu")
    assert predicted.peak == pytorch_peak(lambda: program(name, way))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("grad", "given"), [(False, False), (True, False), (True, True)])
def test_without_a_cache_no_mask_is_made(grad: bool, given: bool):
    """transformers makes a mask where it sees fake tensors, as a compiler's: it does not ask whether sequences are packed.
    ``given``: positions come from data."""

    def run() -> Any:
        model, ids = MODELS["llama"](), torch.zeros(2, 32, dtype=torch.long)
        places = torch.randint(0, 5, (2, 32)).sort().values if given else None
        with torch.set_grad_enabled(grad):
            return model, model(input_ids=ids, use_cache=False, position_ids=places).logits

    found = pytorch.predict(run, device="cpu")
    assert any("position ids were assumed to be those of one sequence in each row" in note for note in found.notes) == given
    if not given:
        assert found.peak == pytorch_peak(run)


def test_masks_that_the_program_itself_imports_are_not_those_of_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Once a prediction was another in a process that had imported transformers."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "utils").mkdir()
    (tmp_path / "transformers" / "__init__.py").touch()
    (tmp_path / "transformers" / "utils" / "__init__.py").touch()
    (tmp_path / "transformers" / "utils" / "import_utils.py").write_text(
        "def is_fake_tensor(x):\n    return True\n\ndef is_tracing(tensor=None):\n    return is_fake_tensor(tensor)\n",
        encoding="utf-8",
    )

    def run() -> None:
        utils = importlib.import_module("transformers.utils.import_utils")
        made.append(utils.is_tracing(torch.arange(8)[None]))

    made: list[Any] = []
    finders = list(sys.meta_path)
    with patch.dict(sys.modules):
        for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
            del sys.modules[name]
        for _ in range(2):
            pytorch.predict(run, device="cpu")
        run()
    assert made == [False, False, True], "after a prediction the function is transformers' own again"
    assert sys.meta_path == finders


def test_a_number_that_is_kept_for_backward_is_a_tensor():
    """``x * 0.5`` keeps a tensor of 8 bytes, from the forward to the backward."""

    def run() -> torch.Tensor:
        x = torch.empty(1000, requires_grad=True)
        made = [x * 0.5 for _ in range(100)]
        made[0].sum().backward()
        return made[-1]

    found = pytorch.predict(run, device="cpu").peak
    assert found == pytorch_peak(run)
    assert found > 4 * 1000 * 101 + 100 * 8

"""``python -m tests.pytorch.gpu_advice``, on a machine with a GPU: the changes of ``pytorch.advise``, predicted and run.

It writes ``recordings/h100-advice.json``; ``gpu_recordings.py`` makes a page of it. With ``again`` it predicts what ran once
more, on any machine.
A change is made to the program from outside in both cases, by the same code. What the user would write is in
``test_advise.py``, which compares it with that.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.networks import MORE, WORKLOADS
from tests.pytorch.gpu_ops import GPU
from tests.pytorch.gpu_steps import ADAM, SGD, training
from tinygrad_mem import pytorch
from tinygrad_mem.pytorch.advice import Advised
from tinygrad_mem.pytorch.advise import Trials
from tinygrad_mem.pytorch.cards import card_of

FILE = Path(__file__).parent / "recordings" / "h100-advice.json"
NOT_RUN = "8-bit states for Adam"  # what is predicted for it is a stand-in of bitsandbytes, which is not asked for here
SETTINGS = "expandable_segments"


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.heads(self.first(x)).view(batch, tokens, 3, -1, 64).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + seen.transpose(1, 2).reshape(batch, tokens, width)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Model(nn.Module):
    """A language model of some blocks."""

    def __init__(self, words: int = 5000, width: int = 256, blocks: int = 6) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Layer(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def language(batch_size: int = 16, rule: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, none: bool = True) -> None:
    """Training steps of a language model."""
    model = Model().to(GPU)
    optimizer = rule(model.parameters(), lr=1e-3)
    for _ in range(3):
        ids = torch.randint(0, 5000, (batch_size, 129), device=GPU)
        optimizer.zero_grad(set_to_none=none)
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()


def layers(batch_size: int = 2048, rule: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, clip: bool = False) -> None:
    """Training steps of residual blocks in an ``nn.Sequential``."""
    model = nn.Sequential(*(Layer(512) for _ in range(9))).to(GPU)
    optimizer = rule(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(batch_size, 512, device=GPU)).square().mean().backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


WITH_BATCH: dict[str, Callable[..., None]] = {
    "language model": language,
    "language model, SGD": partial(language, rule=torch.optim.SGD),
    "language model, gradients to 0": partial(language, none=False),
    "residual layers": layers,
    "residual layers, fused": partial(layers, rule=partial(torch.optim.AdamW, fused=True)),
    "residual layers, clipped": partial(layers, clip=True),
}
PROGRAMS: dict[str, Callable[..., Any]] = {
    **WITH_BATCH,
    **{
        f"{workload.name}, {name}": partial(training, workload, rule)
        for workload in [*WORKLOADS, *MORE]
        for name, rule in (("SGD", SGD), ("Adam", ADAM))
        if "1001" not in workload.name and "224x224" not in workload.name
    },
}
ROOM = 0.7  # the part of what a program reserves as it is, on which the largest batch is searched for


def run(name: str, changes: list[Any], capacity: int | None = None, **batch: int) -> tuple[int, int] | None:
    """Run a program with changes on the GPU: both its peaks, or ``None`` if it ran out of memory."""
    from tests.pytorch.gpu_record import fresh

    settings = ",".join(filter(None, (change.settings for change in changes)))
    fresh()
    torch.cuda.memory._set_allocator_settings(settings or f"{SETTINGS}:False")
    room = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(1.0 if capacity is None else capacity / room)
    torch.manual_seed(0)
    try:
        with ExitStack() as stack:
            for change in changes:
                stack.enter_context(change.made("cuda"))
            PROGRAMS[name](**batch)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    except torch.OutOfMemoryError:
        return None
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def examine(name: str) -> dict[str, Any]:
    """Predict and run a program as it is, with each change, with the best combinations; and with the largest batches for a
    smaller card: they fit on the GPU, and one more does not.
    """
    warnings.simplefilter("ignore")
    try:
        capacity = int(ROOM * pytorch.predict(PROGRAMS[name], gpu="H100").peak_reserved) if name in WITH_BATCH else None
        tried = Trials(PROGRAMS[name], (), {}, "cuda", "", card_of("H100"), capacity)
        changes = [change for change in tried.begin() if not change.why_not(tried.seen, "cuda") and change.name != NOT_RUN]
        each = sorted((tried.row([change]) for change in changes), key=lambda row: row.peak_reserved)
        together = tried.together([tried.changes[row.names[0]] for row in each if not row.refused])
        return {
            "rows": [_row(name, tried, row) for row in [tried.plain, *each, *together]],
            "batches": [_batch(name, tried, row) for row in tried.batches([*each, *together]) if row.batch_size],
        }
    except Exception as error:  # a program may fail in any way; the others go on
        return {"error": f"{type(error).__name__}: {error}"}


def _row(name: str, tried: Trials, row: Advised) -> dict[str, Any]:
    if row.refused:
        return {"names": row.names, "refused": row.refused}
    found = run(name, [tried.changes[change] for change in row.names])
    return {"names": row.names, "predicted": [row.peak, row.peak_reserved], "unknown": row.unknown, "recorded": found}


def _batch(name: str, tried: Trials, row: Advised) -> dict[str, Any]:
    changes = [tried.changes[change] for change in row.names[1:]]
    fits = [run(name, changes, tried.room, batch_size=row.batch_size + more) is not None for more in (0, 1)]
    return {"names": row.names, "capacity": tried.room, "batch": row.batch_size, "unknown": row.unknown, "fits": fits}


def main(*words: str) -> None:
    """Examine the programs, several at a time, and write what was found."""
    wanted = [name for name in PROGRAMS if not words or any(word in name for word in words)]
    found: dict[str, Any] = {}
    with ProcessPoolExecutor(10, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        futures = {pool.submit(examine, name): name for name in wanted}
        for number, future in enumerate(as_completed(futures), 1):
            found[futures[future]] = future.result()
            print(f"{number} of {len(wanted)} programs: {futures[future]}", file=sys.stderr, flush=True)
    _write(found)


def again() -> None:
    """Predict what was recorded by the rules of today."""
    found = recorded()
    for name, program in found.items():
        tried = Trials(PROGRAMS[name], (), {}, "cuda", "", card_of("H100"), None, "2.11")
        tried.begin()
        for row in [row for row in program["rows"] if "recorded" in row]:
            now = tried.row([tried.changes[change] for change in row["names"]]) if row["names"] else tried.plain
            row.update(predicted=[now.peak, now.peak_reserved], unknown=now.unknown)
    _write(found)


def _write(found: dict[str, Any]) -> None:
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sorted(found.items()))
    FILE.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


# --- the page -------------------------------------------------------------------------------------------------------------

_HEAD = """
## Advice

`pytorch.advise` tries changes of a program. {programs} training programs ran on the H100 as they are, with each change that
applies to them, and with the best combinations: {count} runs, each predicted without a GPU. {equal} peaks
(`max_memory_allocated`) are equal to the byte, {bounded} within the prediction's bound (mostly cuDNN's workspaces), and
{further} further off, by {most} at most. Reserved bytes are equal in {reserved} of {count}, and in {new} of the {programs} runs
that were the first of their process: in the others cuDNN's workspaces differ. Later runs get addresses that earlier ones have
left, and addresses decide which free block is taken. bitsandbytes' 8-bit states were not run.

| change | runs | equal | bounded | further off | reserved equal |
|---|---:|---:|---:|---:|---:|
"""
_BATCHES = """
The largest batch was searched for {batches} programs and a card with {room:.0%} of what they reserve. On the GPU, with
`torch.cuda.set_per_process_memory_fraction`, each fits, and one more is out of memory. With changes this was tried once: the
largest batch fits, and one more does, too. Combinations with expandable segments cannot be compared so: PyTorch's own limit
counts otherwise there.
"""


def recorded() -> dict[str, Any]:
    """What the script found on the GPU, by program."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def kind(row: dict[str, Any]) -> str:
    """How a predicted peak agrees with the recorded one."""
    off = abs(row["predicted"][0] - row["recorded"][0])
    return "equal" if not off else "bounded" if off <= row["unknown"] else "further"


def section() -> str:
    """The part of the page about advice."""
    rows = [row for program in recorded().values() for row in program["rows"] if "recorded" in row]
    of: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        names = row["names"]
        first = "checkpointing" if names and names[0].startswith("checkpoint") else names[0] if names else "none: as it is"
        of.setdefault("several together" if len(names) > 1 else first, []).append(row)
    lines = [f"| {name} | {_counts(each)} |" for name, each in sorted(of.items(), key=lambda pair: -len(pair[1]))]
    kinds = [kind(row) for row in rows]
    far = [row for row in rows if kind(row) == "further"]
    most = max(abs(row["predicted"][0] / row["recorded"][0] - 1) for row in far)
    plain = [each for program in recorded().values() for each in program["batches"] if len(each["names"]) == 1]
    assert all(each["fits"] == [True, False] for each in plain)
    head = _HEAD.format(
        programs=len(recorded()), count=len(rows), equal=kinds.count("equal"), bounded=kinds.count("bounded"), further=len(far),
        most=f"{most:.1%}", reserved=_reserved(rows), new=_reserved([each["rows"][0] for each in recorded().values()]),
    )  # fmt: skip
    return head + "\n".join(lines) + "\n" + _BATCHES.format(batches=len(plain), room=ROOM)


def _counts(rows: list[dict[str, Any]]) -> str:
    kinds = [kind(row) for row in rows]
    return " | ".join(map(str, (len(rows), *(kinds.count(each) for each in ("equal", "bounded", "further")), _reserved(rows))))


def _reserved(rows: list[dict[str, Any]]) -> int:
    """The number of runs whose reserved bytes are predicted."""
    return sum(row["predicted"][1] == row["recorded"][1] for row in rows)


if __name__ == "__main__":
    again() if sys.argv[1:] == ["again"] else main(*sys.argv[1:])

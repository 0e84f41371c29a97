"""All that the library offers, in every dtype, on a device that computes nothing: which kernels it wants, and which memory.

``python -m tests.emulated.offered FILE`` writes what it found. It needs a process of its own, whose CuPy finds no kernel that
does anything; what is read from the device is 0.
"""

from __future__ import annotations

import itertools
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from .attach import asked, attach

FLOATS = ("float16", "float32", "float64")
OTHERS = ("bool", "uint8", "int8", "int16", "int32", "int64")  # without a gradient
Run = Callable[[str], None]  # on a device


def runs() -> Iterator[tuple[str, Run]]:
    """Whatever the tests have a row for."""
    from tests.memory.test_predicted import FAMILIES, PLAIN, RULES, called, layer, trained
    from tests.nn.rows import ROWS
    from tests.ops.cases import CASES

    layout, sizes, _ = PLAIN
    for dtype in (*FLOATS, *OTHERS):
        grad = dtype in FLOATS
        for case in CASES:
            yield f"{case.name} {dtype}", partial(_step, case, dtype)
        for call in itertools.chain(*FAMILIES.values()):
            yield f"{call} {dtype}", _on(called, call, layout, sizes, dtype, grad)
    for (name, options), masters, dtype in itertools.product(RULES, (False, True), FLOATS):
        yield f"{name} {dtype}", _on(trained, name, options | _whole(name), masters, dtype)
    for row, train in itertools.product(ROWS, (True, False)):
        yield str(row), _on(layer, row, train)
    for dtype in FLOATS:
        yield f"sort of a long line {dtype}", partial(_sorted, dtype)
        yield f"norms of long lines {dtype}", partial(_normed, dtype)
    for name, dtype in itertools.product(("SGD", "SparseAdam", "Adagrad"), FLOATS[1:]):
        yield f"{name} of rows {dtype}", partial(_rows_moved, name, dtype)


def _on(run: Callable[..., None], *arguments: Any) -> Run:
    import tinygrad_mem as tm

    def on(dev: str) -> None:
        with tm.device(dev):
            run(*arguments)

    return on


def _whole(name: str) -> dict[str, int]:
    return {"min_8bit_size": 0} if "8bit" in name else {}


def _step(case: Any, dtype: str, dev: str) -> None:
    from tests.case import ours
    from tests.ops.test_contract import arrays_of, step

    step(case, ours(arrays_of(case), dtype, dev, grad=case.grad and dtype in FLOATS))


def _sorted(dtype: str, dev: str) -> None:
    import tinygrad_mem as tm

    tm.ones(3, 5000, dtype=getattr(tm, dtype), device=dev).sort()


def _normed(dtype: str, dev: str) -> None:
    """Lines that a whole block of threads sums."""
    import tinygrad_mem as tm

    x = tm.ones(2, 4, 300, dtype=getattr(tm, dtype), device=dev, requires_grad=True)
    for norm in (tm.nn.BatchNorm1d(4), tm.nn.GroupNorm(2, 4)):
        norm.to(dev, dtype=getattr(tm, dtype))(x).sum().backward()


def _rows_moved(name: str, dtype: str, dev: str) -> None:
    import tinygrad_mem as tm

    table = tm.nn.Embedding(5, 3, sparse=True, dtype=getattr(tm, dtype), device=dev)
    table(tm.zeros(4, dtype=tm.int64, device=dev)).sum().backward()
    getattr(tm.optim, name)(table.parameters(), lr=0.1).step()


def ran(run: Run, dev: str) -> str:
    """``""``, or what the run was refused with."""
    try:
        run(dev)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(out: Path) -> None:
    """Run everything; of what a GPU refuses, ask the CPU whether it would too."""
    warnings.simplefilter("ignore")
    device = attach(dry=True)
    device.driver.emu_set_junk(0)
    device.show()
    from tests.witness import cupy_allocations
    from tinygrad_mem.devices import device as Device

    Device("cuda")  # it takes a piece of CuPy's pool and gives it back

    hidden: dict[str, str] = {}
    refused: dict[str, str] = {}
    askers: list[str] = []
    count = 0
    for name, run in runs():
        count += 1
        with cupy_allocations() as taken:
            said = ran(run, "cuda")
        if said and not ran(run, "cpu"):
            refused[name] = said.partition("\n")[0]
        for size, place in taken:
            hidden[name] = f"{size} bytes at {place}"
        askers += [name] * (len(asked) - len(askers))
    kernels = {name: [each.times, each.threads] for name, each in device.launched().items()}
    found = {"runs": count, "sources": [*asked], "askers": askers, "launched": kernels, "hidden": hidden, "refused": refused}
    out.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The page of what CUDA's kernels allocate beside their results: ``python -m tests.pytorch.kernels_page`` writes it."""

from __future__ import annotations

from pathlib import Path

from tinygrad_mem.pytorch.program.kernels import rows

PAGE = Path(__file__).parents[2] / "docs" / "pytorch_kernels.md"

_HEAD = """# What PyTorch's CUDA kernels allocate beside their results

`pytorch.predict` runs a program without a GPU, and sees each result of each op. Kernels and libraries allocate
more: workspaces, temporaries, staging buffers. This table lists them. Each row is a function in
`tinygrad_mem/pytorch/program/kernels/`. *Seen* names the recordings of real GPUs that confirm a row, and says for what; the
other rows are derived from sources only. What only a GPU or a closed library knows is given as a bound, with its reason.

- *Staging*: if several thread blocks share a result of a reduction (a sum, a mean, a maximum), each block stores its part in
  a buffer, and each group of results has a semaphore of 4 bytes. If each result is computed by one block, there is none.
- *Temporary storage*: the working memory of a call of CUB or Thrust, which sort, scan and select.
- *Contiguous*: row-major, or in the memory format that the kernel takes. A copy is made only of what is not.

`h100`: PyTorch 2.11 with cuDNN 9.19 on an H100 of 80 GB.

Ops that are not in the table are views, elementwise, or allocate only their results (`kernels/unread.py`). Some are composed of
other ops in PyTorch's C++; those are predicted one by one (`OF_OTHERS` in `program/composite.py`). Any other op is listed in
`Prediction.unknown`, with a copy of each argument and of each result as its bound.

The sources are those of PyTorch 2.6.0, the headers that come with PyTorch 2.13 and CUB 3.0.1; a row says where versions differ.
They are below `aten/src/ATen/native`, unless they begin with `aten`.
`python -m tests.pytorch.kernels_page` writes this page.

| ops | allocates | source | seen |
|---|---|---|---|
"""


def page() -> str:
    """The page, from the table."""
    lines = [
        f"| {', '.join(f'`{op}`' for op in row.ops)} | {row.takes} | {row.source} | {row.seen or 'no'} |".replace("\n", " ")
        for row in rows()
    ]
    return _HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

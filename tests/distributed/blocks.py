"""The network that tests of sharding train, in this library or in PyTorch: the same program in each."""

from __future__ import annotations

from typing import Any


def classes(lib: Any) -> tuple[Any, Any]:
    """``Block`` and ``Network`` of ``lib``, which is ``tinygrad_mem`` or ``torch``."""
    nn = lib.nn

    class Block(nn.Module):
        """A residual block whose parameters have 16, 3 and 1 rows: fewer than some numbers of ranks."""

        def __init__(self, width):
            super().__init__()
            self.norm = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 3), nn.Linear(3, width)
            self.scale = nn.Parameter(lib.full((1,), 0.5))

        def forward(self, x):
            return x + self.scale * self.down(lib.tanh(self.up(self.norm(x))))

    class Network(nn.Module):
        def __init__(self, width=16, blocks=3):
            super().__init__()
            self.first = nn.Linear(6, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
            self.last = nn.Linear(width, 3)

        def forward(self, x):
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return self.last(x)

    return Block, Network

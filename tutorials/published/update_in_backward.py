"""Stepping in backward: the figure of PyTorch's tutorial on it, for a vision transformer of 304 million parameters.

Published: ViT-L/16, Adam, one image: the peak falls from about 6 GB to about 4 GB, and moves from the optimizer's step to the
start of backward. The parts, of P = 4 bytes a parameter: P, gradients P, Adam's state 2P; PyTorch's step takes another P for a
moment. Stepping in backward leaves P and 2P, and what the activations take.
"""

import tinygrad_mem as tm
from tinygrad_mem import Tensor, memory, nn
from tinygrad_mem.techniques import optimizer_in_backward

PUBLISHED = {"plain": 6e9, "in backward": 4e9}
PARAMETERS = 304_326_632
WIDTH, LAYERS, PATCHES = 1024, 24, 14 * 14


class ViT(nn.Module):
    """Vision Transformer, large, patches of 16 x 16 (Dosovitskiy et al., 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, stride=16)
        self.token = nn.Parameter(tm.zeros(1, 1, WIDTH))
        self.places = nn.Parameter(tm.zeros(1, PATCHES + 1, WIDTH))
        layers = [
            nn.TransformerEncoderLayer(WIDTH, 16, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS)
        ]
        self.layers = nn.Sequential(*layers)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)  # N, patches, width
        x = tm.cat([self.token.expand(len(x), -1, -1), x], 1) + self.places
        return self.head(self.norm(self.layers(x))[:, 0])


def steps(in_backward: bool) -> None:
    model = ViT()
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS
    optimizer = tm.optim.Adam(model.parameters())
    early = optimizer_in_backward(optimizer) if in_backward else None
    for _ in range(2):
        nn.functional.cross_entropy(model(tm.randn(1, 3, 224, 224)), tm.randint(0, 1000, (1,))).backward()
        if early is None:
            optimizer.step()
            optimizer.zero_grad()


def figures() -> dict[str, memory.Track]:
    """The track of two steps, stepping after backward and in it."""
    return {"plain": memory.predict(steps, False), "in backward": memory.predict(steps, True)}


if __name__ == "__main__":
    for name, track in figures().items():
        print(f"{name}: {track.peak / 1e9:.2f} GB, in {track.at_peak().phase}; published: about {PUBLISHED[name] / 1e9:.0f} GB")
        print(track.table())
    print(f"P is {PARAMETERS * 4 / 1e9:.2f} GB. Plain: P, gradients P, state 2P; PyTorch's step takes another P for a moment.")
    print("In backward: P and 2P, and the activations on top.")

"""What a parameter costs under each update rule.

Published, in many lists of tips: "a parameter costs four times its bytes under Adam": itself, its gradient, two moments.
"""

import tinygrad_mem as tm
from tinygrad_mem import memory, nn

WIDTH, LAYERS = 1000, 8
RULES = {
    "SGD": lambda p: tm.optim.SGD(p, lr=0.1),
    "SGD with momentum": lambda p: tm.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: tm.optim.Adam(p),
}


def bytes_a_parameter(rule: str) -> float:
    """Bytes at the end of a step, over the number of parameters; activations are gone then."""

    def step() -> None:
        model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)])
        optimizer = RULES[rule](model.parameters())
        model(tm.ones(1, WIDTH)).sum().backward()
        optimizer.step()
        memory.mark("updated")

    sizes = memory.predict(step).by_category("updated")
    kept = ("parameters", "gradients", "optimizer state")
    return sum(size for category, size in sizes.items() if category.value in kept) / (LAYERS * WIDTH * WIDTH)


if __name__ == "__main__":
    for name in RULES:
        found = bytes_a_parameter(name)
        print(f"{name:20} {found:6.3f} bytes a parameter, {found / 4:.3f} times its own 4")
    print("What is above 16 under Adam is rounding: blocks are multiples of 512 bytes, and a step count has its own.")

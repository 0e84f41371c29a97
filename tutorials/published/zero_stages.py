"""ZeRO's stages, by formula: what each of N devices holds of a model of P parameters in mixed precision under Adam.

Published: Rajbhandari et al., *ZeRO: Memory optimizations toward training trillion parameter models*, 2020, figure 1: for
7.5 billion parameters on 64 devices 120, 31.4, 16.6 and 1.9 GB (10^9 bytes). There is one device here: this is arithmetic.
"""

PARAMETERS, DEVICES = 7_500_000_000, 64
HALF, STATE = 2, 12  # bytes: a float16 parameter or gradient; float32 copy and two moments
PUBLISHED = {"none": 120.0, "optimizer state": 31.4, "and gradients": 16.6, "and parameters": 1.9}


def figures() -> dict[str, float]:
    """Bytes a device, by what is cut into one part a device."""
    p, n = PARAMETERS, DEVICES
    return {
        "none": (HALF + HALF + STATE) * p,
        "optimizer state": (HALF + HALF + STATE / n) * p,
        "and gradients": (HALF + (HALF + STATE) / n) * p,
        "and parameters": (HALF + HALF + STATE) / n * p,
    }


if __name__ == "__main__":
    for name, size in figures().items():
        print(f"{name:16} {size / 1e9:7.3f} GB, published {PUBLISHED[name]:6.1f}")

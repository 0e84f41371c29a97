"""scikit-learn's bundled digits: 1,797 images of handwritten digits, 8 x 8, that need no download.

Source: Alpaydin and Kaynak, *Optical recognition of handwritten digits*, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ..errors import missing


def load_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels (1,437), and held-out ones (360): every fifth image is held out.

    Returns:
        Images as float32 in [0, 1], (count, 1, 8, 8); labels as int64, (count,).

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    package = find_spec("sklearn")  # it is not imported: that takes a second
    if package is None or package.origin is None:
        raise missing("sklearn", "load_digits")
    table = np.loadtxt(Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz", delimiter=",")
    images = (table[:, :-1].reshape(-1, 1, 8, 8) / 16).astype(np.float32)
    labels = table[:, -1].astype(np.int64)
    held_out = np.arange(len(images)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]

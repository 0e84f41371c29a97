"""scikit-learn's bundled digits: 1,797 images of handwritten digits, 8 x 8, that need no download.

Source: Alpaydin and Kaynak, *Optical recognition of handwritten digits*, UCI Machine Learning Repository, 1998.
"""

from __future__ import annotations

import numpy as np

from ..errors import missing


def load_digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels (1,437), and held-out ones (360): every fifth image is held out.

    Returns:
        Images as float32 in [0, 1], (count, 1, 8, 8); labels as int64, (count,).

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        if error.name not in ("sklearn", "sklearn.datasets"):
            raise
        raise missing("sklearn", "load_digits") from None
    bundle = datasets.load_digits()
    images = (bundle.images[:, None] / 16).astype(np.float32)  # type: ignore[union-attr]
    labels = bundle.target.astype(np.int64)  # type: ignore[union-attr]
    held_out = np.arange(len(images)) % 5 == 0
    return images[~held_out], labels[~held_out], images[held_out], labels[held_out]

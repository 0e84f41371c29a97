"""What the numbers of lessons 1 to 7 must be: by formulas that know nothing of the lessons' own."""

from __future__ import annotations

VGG16 = 138_357_544  # parameters
VGG16_SMALL = 14_719_818  # of images of 32 x 32, without batch norm


def lesson_01(found: dict[str, float]) -> None:
    for part in ("parameters", "momentum"):
        assert 4 * VGG16 <= found[part] < 4 * VGG16 + 32 * 512
    assert 4 * VGG16_SMALL <= found["small: parameters"] < 4 * VGG16_SMALL + 28 * 512
    # for each image, a byte for the places of the maxima beside the numbers that the layers give
    convs, pools = 2 * (3211264 + 1605632) + 3 * (802816 + 401408 + 100352), 802816 + 401408 + 200704 + 100352 + 25088
    assert found["activations of the convolutions"] == 4 * (4 * convs + 5 * pools)
    assert found["peak"] == 1_915_855_360  # as the front page's table
    assert 1 < found["peak / sum by hand"] < 1.01
    assert found["activations are more than the rest from"] == 3 * 4 * VGG16 // (4 * convs + 5 * pools) + 1

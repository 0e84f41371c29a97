"""What the numbers of lessons 1 to 7 must be: by formulas that know nothing of the lessons' own."""

from __future__ import annotations

VGG16 = 138_357_544  # parameters
VGG16_SMALL = 14_719_818  # of images of 32 x 32, without batch norm


def lesson_01(found: dict[str, float], dev: str) -> None:
    for part in ("parameters", "momentum"):
        assert 4 * VGG16 <= found[part] < 4 * VGG16 + 32 * 512
    assert 4 * VGG16_SMALL <= found["small: parameters"] < 4 * VGG16_SMALL + 28 * 512
    # for each image, a byte for the places of the maxima beside the numbers that the layers give
    convs, pools = 2 * (3211264 + 1605632) + 3 * (802816 + 401408 + 100352), 802816 + 401408 + 200704 + 100352 + 25088
    assert found["activations of the convolutions"] == 4 * (4 * convs + 5 * pools)
    if dev == "cpu":
        assert found["peak"] == 1_915_855_360  # as the front page's table
    assert 1 < found["peak / sum by hand"] < (1.01 if dev == "cpu" else 1.03)  # a convolution's columns
    # gradients of parameters, on a GPU a convolution's columns: when the last ones come, most activations are gone
    assert 0.97 * 4 * VGG16 < found["backward adds, with 64 images"] < (1 if dev == "cpu" else 1.06) * 4 * VGG16
    assert found["activations are more than the rest from"] == 3 * 4 * VGG16 // (4 * convs + 5 * pools) + 1


def lesson_02(found: dict[str, float], dev: str) -> None:
    one = 4 * 1024 * 256  # an activation
    assert found["plain: kept"] == found["in place: kept"] == 8 * one
    assert found["plain: most in forward"] == 9 * one
    assert found["in place: most in forward"] == 8 * one
    # at the first ReLU's backward but one: seven activations, a gradient in, a gradient out, two of weights or so
    assert 10 * one < found["plain: most in the step"] == found["in place: most in the step"] < 11 * one
    assert found["residual plain: most in forward"] == 3 * one
    assert found["residual in place: most in forward"] == 2 * one
    assert found["SiLU, inplace=False: kept"] == found["SiLU, inplace=True: kept"] == 16 * one


def lesson_03(found: dict[str, float], dev: str) -> None:
    one = 4 * 1024 * 256  # an activation
    graph = 3 * one + 1024 * (40 + 8 + 4) + 512
    arrays = {"Named": (7, 7), "Nested": (3, 4), "Rebound": (2, 4)}
    for name, (without, with_gradients) in arrays.items():
        assert found[f"{name}, no_grad: most"] == without * one
        assert found[f"{name}, gradients: most"] == with_gradients * one
    parameters = 2 * 4 * (256 * 256 + 256) + 4 * 2560 + 512
    assert found["add: after the loop"] == 5 * graph + 512
    assert found["add_item: after the loop"] == 0
    assert found["add_after_backward: after the loop"] == parameters + 512  # their gradients, and the total
    assert 5 * graph < found["sum of losses: peak"] < 6 * graph
    assert 2 * graph < found["item(): peak"] < 3 * graph
    assert graph < found["item(), del: peak"] < 2 * graph
    assert 2 * one < found["item(), no_grad: peak"] < graph
    assert found["cycle: waited for the collector"] == one
    assert found["training: waited for the collector"] == 0
    assert (found["list of views"], found["list of clones"]) == (5 * one, 5 * 1024)


def lesson_04(found: dict[str, float], dev: str) -> None:
    convs, pool = 4 * 32 * 16 * 16, 32 * 8 * 8
    an_image = 4 * 3 * 16 * 16 + 2 * convs + 5 * pool + 40 + 8 + 4
    for batch in (128, 256, 512):
        assert found[f"batch {batch}: kept"] == batch * an_image + 512
    assert found["kept when losses are summed first"] == 256 * an_image + 2 * 512
    assert 2 * (found["parts: activations"] - 512) == found["whole: activations"] - 512
    assert 0.5 < found["parts: peak"] / found["whole: peak"] < 0.6
    assert found["parts: peak"] < found["losses_first: peak"]
    assert found["weighted"] < 1e-5 < 0.1 < found["mean of means"]
    assert 0.001 < found["batch norm"] < 0.1
    assert found["batch norm's updates in four parts"] == 4
    # parts need the first layers' gradients besides: three of 1024 x 1024, and the sum of one more
    assert 0 < found["heavy, in four parts"] - found["heavy, whole"] < 2 * 4 * 1024 * 1025


def lesson_05(found: dict[str, float], dev: str) -> None:
    weights, activation = 4 * 256 * 257, 256 * 256  # numbers
    for dtype, each in (("float32", 4), ("float16", 2)):
        assert found[f"{dtype}: parameters"] == each * weights
        assert found[f"{dtype}: activations"] == 3 * each * activation
    # what is kept halves; the peak does not on the cpu, because products in float16 have a workspace in float32
    if dev == "cpu":
        assert 0.5 < found["float16: peak"] / found["float32: peak"] < 0.8
    else:
        assert found["float16: peak"] == found["float32: peak"] / 2
    # on cuda of fewer images, each of which has a larger part in the loss
    assert (0.001 if dev == "cpu" else 0) < found["scale 1: lost"] < 0.05
    assert found["scale 16384: lost"] < found["scale 1: lost"] / 20
    assert abs(found["the histogram moves by"] - 14) < 0.01
    assert 0 < found["skipped first"] < found["skipped"] < 0.2 * found["steps"]
    assert found["static"] == found["dynamic"] == 24 - found["skipped first"]


def lesson_06(found: dict[str, float], dev: str) -> None:
    numbers = 4 * 256 * 257
    for mode, (weight, master, moment, gradient) in {
        "float32": (4, 0, 4, 4),
        "masters": (2, 4, 4, 2),
        "float16 alone": (2, 0, 2, 2),
    }.items():
        assert found[f"{mode}: parameters"] == weight * numbers
        assert found[f"{mode}: master weights"] == master * numbers
        assert found[f"{mode}: optimizer state"] == 2 * moment * numbers
        assert found[f"{mode}: gradients"] == gradient * numbers
        assert found[f"{mode}: a parameter"] == weight + master + 2 * moment + gradient
    assert found["float16 alone ends at"] == 1
    assert found["float32 ends at"] < 0.93
    assert abs(found["masters end at"] - found["float32 ends at"]) < 2**-11
    assert found["one by one"] == found["a product, accumulated in float16"] == 2048
    assert found["sum()"] == found["a product"] == 3000
    assert (found["naive is nan from step"], found["unused weight"]) == (0, 1)
    assert (found["Adam, float32 gradients"], found["SGD, float16 gradients"]) == (18, 8)


def lesson_07(found: dict[str, float], dev: str) -> None:
    numbers, matrix, activation = 4 * 256 * 257, 256 * 256, 512 * 256
    kept = {"float32": 4 * 4 * activation, "autocast": 2 * 5 * activation, "masters": 2 * 4 * activation}
    kept["float16 alone"] = kept["masters"]
    for mode, size in kept.items():
        assert found[f"{mode}: activations"] == size
    assert found["copies of weights in the region"] == 2 * numbers
    assert found["autocast: casts of weights"] == 3 * 2 * matrix
    assert found["at a batch of the width"] == 4 * 4 * matrix
    for batch, order in (
        (64, "float16 alone, float32, autocast, masters"),
        (4096, "float16 alone, masters, autocast, float32"),
    ):
        peaks = {mode: found[f"{mode}, batch {batch}: peak"] for mode in kept}
        assert sorted(peaks, key=lambda mode: peaks[mode]) == order.split(", ")

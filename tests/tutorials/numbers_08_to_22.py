"""What the numbers of lessons 8 to 22 must be: by formulas that know nothing of the lessons' own."""

from __future__ import annotations

from math import comb, sqrt


def lesson_08(found: dict[str, float], dev: str) -> None:
    result, n = 256 * 256 * 4, 144
    for k in (2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 36, 48, 72, 144):
        assert found[f"peak in {k} segments"] == (k + n // k) * result + 1024
    assert found["peak in 1 segment"] == found["peak without"] == (n + 2) * result + 1024
    assert found["best number of segments"] == sqrt(n)
    assert found["peak with the best"] == 2 * sqrt(n) * result + 1024
    assert found["kept when forward ends"] == 22 * result
    assert found["layers that run again"] == n - 12
    kept = [found[f"a hundred linear layers in {k} segment{'s' * (k > 1)} keep"] for k in (1, 2, 10)]
    assert kept == [99 * 2560, 50 * 2560, 18 * 2560]


def lesson_09(found: dict[str, float], dev: str) -> None:
    assert [found[f"forwards within {units} units"] for units in (12, 13, 14, 16, 17, 21)] == [14, 10, 9, 8, 7, 5]
    batch, least, segments = (16, 3, 7) if dev == "cpu" else (4, 2, 10)
    largest = batch * 24 * 32 * 32 * 4  # a result of the first stage
    assert least * largest < found["plain"] - found["planned"] < 6 * largest  # it has 6, that each are kept once
    assert found["planned"] <= found[f"{segments} equal segments"] < found["plain"]
    assert found["the plan runs again"] < found["equal segments run again"] / 3
    n, s, r = 1000, 10, 4
    assert comb(s + r - 1, r - 1) < n <= comb(s + r, r)
    assert found["forwards with 10 inputs"] == n + r * n - comb(s + r, r - 1)
    assert found["revolve's peak"] < found["equal segments' peak"] / 9


def lesson_10(found: dict[str, float], dev: str) -> None:
    # on cuda fewer images, and a convolution's columns: nine results of its input's size
    images, columns = (256, 0) if dev == "cpu" else (16, 9)
    one, blocks, way = images * 16 * 8 * 8 * 4, 6, ("plain", "keep Conv, Dropout", "keep Conv", "checkpoint")
    assert [found[f"{each}: arrays kept"] for each in way] == [3 * blocks, 3 * blocks, 2 * blocks, blocks]
    for each, arrays in zip(way, (3, 3, 2, 1), strict=True):
        assert blocks * arrays * one < found[f"{each}: peak"] < (blocks * arrays + 4 + columns) * one
    assert [found[f"{each}: convolutions that run again"] for each in way] == [0, 0, 0, 2 * blocks]
    assert found["arrays with GELU's results kept"] == blocks
    assert found["batches counted by a forward that is called twice"] == 2


def lesson_11(found: dict[str, float], dev: str) -> None:
    p = 6 * 512 * 512
    for rule, size in (
        ("SGD", 0),
        ("SGD, momentum", 4),
        ("SGD, momentum in float16", 2),
        ("Adam", 8),
        ("Adam, state in float16", 4),
        ("AdamW8bit", 2 + 8 / 2048),
        ("Adafactor", 4 * (512 + 512) / 512**2),
    ):
        assert found[f"{rule}: state"] == size * p
        assert 8 + size <= found[f"{rule}: peak"] < 8.1 + size  # weights, gradients, state
    assert 4 * p * 4 / 6 < found["stepping in backward saves"] <= 4 * p * 5 / 6
    assert found["GPT-2, Adam"] == 8 * 124_439_808
    assert 2 * 124_439_808 < found["GPT-2, AdamW8bit"] < 2.02 * 124_439_808
    assert found["batch 8: Adam's peak over SGD's"] > 1.8 > 1.5 > found["batch 128: Adam's peak over SGD's"]


def lesson_12(found: dict[str, float], dev: str) -> None:
    mib = 1 << 20
    assert (found["in use"], found["reserved"], found["free"], found["largest piece"]) == (4 * mib, 8 * mib, 4 * mib, mib)
    assert found["given back by empty_cache with parts in use"] == 0
    assert found["reserved where each had a segment"] == 6 * mib
    assert found["growing: peak in use"] == found["largest first: peak in use"]
    assert found["growing: reserved"] > 3 * found["largest first: reserved"]
    assert found["largest first: reserved"] < 1.2 * found["largest first: peak in use"]
    waste = 512 - 10 * 4
    assert (found["biases that waste a mebibyte"] - 1) * waste <= mib < found["biases that waste a mebibyte"] * waste


def lesson_13(found: dict[str, float], dev: str) -> None:
    kinds = {"plain": 2, "half the channels": 1, "stride 2": 1 / 2, "in place": 1, "reversible": 0}
    batch, columns = (16, 0) if dev == "cpu" else (4, 9)
    one = batch * 32 * 32 * 32 * 4
    for kind, results in kinds.items():
        assert abs(found[f"{kind}: results a layer"] - results) < 0.016 / batch
        if kind != "reversible":  # eight layers, the first convolution's result, and what comes and goes
            assert 8 * results * one < found[f"{kind}: peak"] < (8 * results + 4 + columns) * one
    conv, norm = 16 * 16 * 9 * 4 + 512, 2 * 512  # weight, bias; weight, bias; and two statistics and a count
    assert found["reversible: what 4 layers add to the peak"] == 4 * 2 * (2 * (conv + norm) + 3 * 512)
    flattened = 4 * (25088 * 4096 + 4096 + 4096 * 4096 + 4096 + 4096 * 1000 + 1000)
    assert abs(found["weights that global pooling saves"] - flattened + 4 * (512 * 1000 + 1000)) < 2048
    assert found["kept with pooling"] / found["kept with a stride"] == 5.25


def lesson_14(found: dict[str, float], dev: str) -> None:
    place = (4 * 32 + 32 + 16 + 256) * 4  # gates, output, input, scores
    assert found["bytes of a place"] == place
    padded, most = found["padded to the longest of all: peak"], 16 * 256 * place
    assert most < padded < 1.7 * most  # and the gradient of the scores
    assert found["buckets: peak"] == padded
    assert 0.45 * padded < found["a budget of places: peak"] < 0.55 * padded
    assert found["packed: peak"] < 0.8 * padded
    assert found["sequences of 256 in 8 MiB"] == 2**23 // (place * 256)


def lesson_15(found: dict[str, float], dev: str) -> None:
    batch, heads, each, layers, words, wide = 2, 4, 16, 2, 8192 if dev == "cpu" else 2048, 64
    for tokens in (128, 256, 512):
        assert found[f"attention with scores, {tokens} tokens: kept"] == 4 * batch * heads * tokens**2
        assert found[f"attention in tiles, {tokens} tokens: kept"] == 4 * batch * heads * tokens * (each + 1)
    scores, vocabulary = layers * 4 * batch * heads * 256**2, 4 * batch * 256 * words
    assert 0.9 * scores < found["attention in tiles keeps less"] < 1.2 * scores
    assert found["the loss in tiles keeps less"] == vocabulary
    peaks = [found[f"{name}: peak"] for name in ("textbook", "attention in tiles", "and the loss in tiles")]
    assert 0.9 * scores < peaks[0] - peaks[1] < 1.2 * scores
    # the scores and their gradient; on cuda the peak is then where a tile of attention's scores is, which is large
    assert (1.7 if dev == "cpu" else 1.2) * vocabulary < peaks[1] - peaks[2] < 2 * vocabulary
    assert peaks[2] > 4 * (words + 256) * wide  # the weights alone
    assert found["textbook: 1024 tokens over 512"] > 2
    assert found["and the loss in tiles: 1024 tokens over 512"] < (2 if dev == "cpu" else 3.2)
    assert found["GPT-2: scores kept"] == 12 * 12 * 1024**2 * 4
    assert found["GPT-2: kept in tiles"] == 12 * 12 * 1024 * 65 * 4


def lesson_16(found: dict[str, float], dev: str) -> None:
    budget, layers, batch, columns = (11 << 20, 6, 16, 0) if dev == "cpu" else (13 << 20, 12, 8, 9)
    one, most = batch * 16 * 32 * 32 * 4, 2 * layers + 4 + columns
    assert 2 * layers * one < found["bytes of the plain step"] == found["plain: peak"] < most * one
    assert 2 * layers * one / batch < found["bytes an image"] < most * one / batch
    assert found["results too many"] == (4 if dev == "cpu" else 8)
    assert found["the planned step"] == found["planned: peak"] <= budget
    assert 1 < found["planned: time, of the plain step's"] < 1.5
    assert found["a batch that fits with a plan"] > (2 if dev == "cpu" else 1) * found["largest batch, plain"]
    assert found["with the batch in parts"] < 0.75 * found["the least without splitting"]
    room = 0 if dev == "cpu" else one  # CuPy's pool may cut its pieces otherwise
    assert found["planned: peak"] <= found["planned: reserved, inside the budget"] <= budget + room
    assert (found["planned: reserved, where nothing limits the pool"] > budget) == (dev == "cuda")


def lesson_17(found: dict[str, float], dev: str) -> None:
    one, layers, weight = 1024 * 256 * 4, 6, 256 * 256 * 4
    kept = [found[f"{way}: kept"] for way in ("written out", "own op", "and in float16")]
    assert kept == [3 * layers * one, 2 * layers * one, (layers + 0.5) * one]
    for way, size in zip(("written out", "own op", "and in float16"), kept, strict=True):
        assert size < found[f"{way}: peak"] - 2 * layers * (weight + 1024) < size + 8 * one
    assert found["gradients at once"] == layers * (weight + 1024)
    assert found["gradients at once, stepping in backward"] == weight
    assert found["a SiLU of 4 rows saves"] == 4 * 256 * 4
    assert found["written out, packed twice"] - found["written out, packed once"] == layers * one / 2


def lesson_18(found: dict[str, float], dev: str) -> None:
    mib, card = 1 << 20, 256 << 20
    assert found["PyTorch reserves"] == (2 + 20 + 16) * mib
    assert found["PyTorch allocates"] == 1024 + (3 + 12 + 16) * mib
    assert found["CuPy reserves"] > card  # this is of the run
    assert found["the hole, default settings"] == 60 * mib
    assert found["the hole, max_split_size_mb:24"] == 50 * mib
    assert found["the hole, expandable_segments:True"] == 40 * mib
    assert found["the hole, roundup_power2_divisions:4"] == 64 * mib
    plain, grown = "default settings", "expandable_segments:True"
    assert found["most in use"] < 0.75 * card < card < found[f"{plain}: reserved"] < found["CuPy reserves"]
    assert found[f"{grown}: reserved"] < 1.2 * found["most in use"]
    assert found[f"{grown}: out of memory on the card, step"] == 0
    steps = [found[f"{name}: out of memory on the card, step"] for name in (plain, "max_split_size_mb:24")]
    assert 1 < steps[0] == steps[1] == found["garbage_collection_threshold:0.8: out of memory on the card, step"] <= 400
    assert 0.9 * steps[0] < found["roundup_power2_divisions:4: out of memory on the card, step"] < steps[0]
    assert found["roundup_power2_divisions:4: reserved"] < found[f"{plain}: reserved"]
    assert found["max_split_size_mb:24: reserved"] == found[f"{plain}: reserved"]
    assert 1 < found["CuPy: out of memory on the card, step"] <= steps[0]
    parts = [found[f"{kind} when it fails"] for kind in ("allocated", "releasable", "stuck")]
    assert sum(parts) <= card
    assert parts[1] == 0
    assert parts[2] > card / 3
    assert found["the step that fails, as the first: reserved"] < card / 2
    assert found["the step that fails, as the first: reserved"] < card / 2
    assert found["without kept scores: reserved"] < 1.05 * found["without kept scores: most in use"]
    assert found["in one place: reserved on the card"] < 1.1 * found["most in use"]
    assert found["requests of the recording"] == 6526
    assert found["the recording: reserved"] < 1.05 * found["the recording: allocated"]


def lesson_19(found: dict[str, float], dev: str) -> None:
    mib, card, words, wide, layers, tokens = 1 << 20, 180 << 20, 4096, 256, 2, 8 * 256
    weights = 4 * (2 * words * wide + layers * (12 * wide * wide + 4 * wide))
    assert found["parameters"] == found["parameters, held"] == weights
    assert found["states of AdamW"] == found["states, held"] == 2 * weights
    assert found["the largest block"] == 4 * tokens * words
    assert card + 40 * mib < found["peak"] <= found["reserved"]
    assert found["changed: peak"] < card
    # qkv, what attention gives, two norms' results, x twice; and up's result and GELU's of four times the width
    assert found["peak"] - found["changed: peak"] > layers * 4 * tokens * wide * 12
    assert found["activations: changed"] < found["activations: as it is"]
    assert found["changes that fit alone"] == 0


def lesson_20(found: dict[str, float], dev: str) -> None:
    layers, layer, many, few = 8, 4 * 512 * 512, 64, 2
    p, activations, sample = layers * layer, layers * 4 * 32 * 512, 4 * 32 * 512
    assert found["data parallel: kept"] == 4 * p
    assert found["ZeRO 1: kept"] == 2 * p + 2 * layer
    assert found["ZeRO 2: kept"] == p + 3 * p / many
    assert found["ZeRO 3: kept"] == 4 * p / many
    for stage in ("data parallel", "ZeRO 1", "ZeRO 2", "ZeRO 3"):
        assert found[f"{stage}: activations"] == activations
        # the batch, activations, the gradient of a layer and that of its input
        assert found[f"{stage}: peak"] - found[f"{stage}: kept"] < sample + activations + 2 * sample + 4 * layer + 4096
        if f"{stage}, rank 0: peak" in found:  # ranks can run here
            kept = {"data parallel": 4 * p, "ZeRO 1": 3 * p, "ZeRO 2": p + 3 * p / few, "ZeRO 3": 4 * p / few}[stage]
            assert kept < found[f"{stage}, rank 0: peak"] == found[f"{stage}, rank {few - 1}: peak"] < kept + 5 * layer
    assert found["ZeRO 1: peak"] - found["ZeRO 1: peak of the others"] == 2 * layer
    assert (
        found["one unit: peak"] > found["one unit: gathered at the peak"] + found["one unit: whole gradients"] == 2 * p - layer
    )


def lesson_21(found: dict[str, float], dev: str) -> None:
    array, table, weights, many, count = 4 * 64 * 128, 4 * 16 * 128, 2 * 4 * 128 * 128, 64, 96
    for rank in (0, 1, 32, 63):
        own = 2 * 2 - (rank > 0)  # arrays that the layers keep of a micro-batch, and one more that was received
        for schedule, under_way in (("GPipe", count), ("1F1B", min(many - rank, count))):
            kept = found[f"{schedule}, rank {rank}: kept"]
            assert kept == under_way * own * array
            most = kept + under_way * (4 - own) * array + 2 * weights + 2 * table + 6 * array + 8 * 64 * count
            assert kept + weights < found[f"{schedule}, rank {rank}: peak"] < most
    assert found["1F1B, rank 0, 192 micro-batches: kept"] == found["1F1B, rank 0, 96 micro-batches: kept"] == 64 * 4 * array
    peaks = [found[f"1F1B, rank {rank}: peak"] for rank in (0, 1, 32, 63)]
    assert peaks == sorted(peaks, reverse=True)
    first, last = (found[f"interleaved, rank {rank} of 8: kept"] for rank in (0, 7))
    assert 0 <= first - 23 * 2 * array <= 4 * array
    assert 0 <= last - 9 * 2 * array <= 4 * array
    if "GPipe: the loss" in found:  # ranks can run here
        assert found["GPipe: the loss"] == found["1F1B: the loss"]
        for rank in (0, 1):
            assert found[f"1F1B, rank {rank} of 2: peak"] < found[f"GPipe, rank {rank} of 2: peak"]


def lesson_22(found: dict[str, float], dev: str) -> None:
    count, tokens, card, wide, words = 8_030_261_248, 131_072, 24_693_293_712, 4096, 128_256
    input, logits, inside = 2 * tokens * wide, 2 * tokens * words, 2 * 14_336
    thin = 41_943_040  # peft's count of this model at rank 16
    states = {name: found[f"{name}: weights, gradients, moments"] for name in ("float32, AdamW", "bfloat16")}
    assert list(states.values()) == [16 * count, 8 * count]
    assert 6 * count < found["moments in 8 bits: weights, gradients, moments"] < 6.005 * count
    assert 2 * count + 6 * thin < found["LoRA: weights, gradients, moments"] < 2 * count + 6.05 * thin
    each = 6 * wide + 2 * 1024 + 4 * 14_336  # numbers that a block keeps of a token; and 34 in float32
    for name, size, length in (("float32, AdamW", 4, 512), ("bfloat16", 2, 512), ("bfloat16", 2, tokens)):
        assert found[f"{name}: kept by a block of {length:,} tokens"] == length * (size * each + 4 * 34) + 1024
    assert found["LoRA: gradients"] == 2 * thin
    assert found["LoRA: share of the parameters that is trained"] == round(thin / count, 4)
    assert 32 * input + logits < found["every block recomputed: kept"] < 34 * input + logits
    assert 0.51 / 2 < (found["frozen weights in NF4: weights"] - 4 * words * wide) / (2 * (count - 2 * words * wide)) < 0.27
    assert found["MLP and loss in tiles: kept less"] == logits - input
    assert found["inputs of blocks on the host: on the host"] == 32 * input + 2 * tokens * 128
    peaks = [size for name, size in found.items() if name.endswith(": peak") and not name.startswith(("small", "8,192"))]
    assert len(peaks) == 9
    assert peaks[:4] == sorted(peaks[:4], reverse=True)
    assert peaks[4:] == sorted(peaks[4:], reverse=True)
    assert 16 * count < peaks[0] < 16 * count + 1e8  # at the end of backward there are gradients, and no activations
    assert peaks[3] < card < peaks[2]
    assert peaks[4] > 32 * tokens * 2 * (6 * wide + 2 * 1024 + 2 * inside) + 2 * count
    kept = found["left at the peak: parameters"]
    tile = 32_768 * inside
    assert 3 * tile + 4 * input < peaks[-1] - kept < 6 * tile + 12 * input
    assert found["left on the card"] == card - peaks[-1] > 0
    assert found["every block recomputed: multiplications, relative to a step without"] == 1.5
    mlp = 3 * wide * 14_336 / (3 * wide * 14_336 + 2 * wide * wide + 2 * wide * 1024)
    assert abs(found["MLP and loss in tiles: multiplications, relative to a step without"] - (1.5 + 0.5 * 0.75 * mlp)) < 0.02
    losses = [size for name, size in found.items() if name.endswith("loss on unseen text")]
    assert len(losses) == 4
    assert max(losses) - min(losses) < 0.1
    assert 0.085 < found["NF4: error of rounding, relative to the weights"] < 0.1
    assert found["8,192 tokens: peak"] < card

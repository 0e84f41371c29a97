"""Settings strings: taken and refused as PyTorch does."""

from __future__ import annotations

import pytest

from tinygrad_mem.pytorch.settings import parse

STRINGS = """
large_segment_size_mb:10
large_segment_size_mb:11
large_segment_size_mb:64,max_split_size_mb:32
large_segment_size_mb:12,max_split_size_mb:12
max_split_size_mb:12,large_segment_size_mb:12
max_split_size_mb:19
max_split_size_mb:20
max_split_size_mb:many
max_non_split_rounding_mb:19
max_non_split_rounding_mb:40
garbage_collection_threshold:0
garbage_collection_threshold:0.8
garbage_collection_threshold:1.0
expandable_segments:True
expandable_segments:true
roundup_power2_divisions:0
roundup_power2_divisions:1
roundup_power2_divisions:3
roundup_power2_divisions:16
roundup_power2_divisions:[256:1,512:2,1024:4,>:8]
roundup_power2_divisions:[256:0]
roundup_power2_divisions:[300:2]
roundup_power2_divisions:[256:3]
roundup_power2_divisions:[>:8]
pinned_use_background_threads:True
backend:native
max_split_size_mb:128,
max_split_size_mb:128 , expandable_segments:True
""".strip().splitlines()


def ours(text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def test_a_setting_that_is_not_given_is_not_compared():
    """PyTorch takes 40 alone, though blocks may exceed a request by 20 only; both together are refused."""
    assert parse("large_segment_size_mb:40").max_non_split_rounding == 20 << 20
    with pytest.raises(ValueError, match="max_non_split_rounding_mb must be at least 40"):
        parse("large_segment_size_mb:40,max_non_split_rounding_mb:20")


def theirs(text: str) -> bool:
    torch = pytest.importorskip("torch")
    said = "large_segment_size_mb:20,max_split_size_mb:4096,max_non_split_rounding_mb:20," + text
    try:
        torch._C._accelerator_setAllocatorSettings(text if "mb" not in text else said)
    except (RuntimeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("text", STRINGS)
def test_pytorch_takes_the_same_strings(text):
    assert ours(text) == theirs(text)


def test_both_kinds_of_strings_were_tried():
    assert 10 < sum(map(ours, STRINGS)) < len(STRINGS) - 10


@pytest.mark.parametrize(
    "text",
    [
        "backend:cudaMallocAsync",
        "max_split",
        "max_split_size_mb",
        "a:b",
        "x",
        "per_process_memory_fraction:2",
        "max_split_size_mb:30.5",
    ],
)
def test_what_is_not_modelled_is_refused_in_words(text):
    with pytest.raises(ValueError, match="settings: "):
        parse(text)

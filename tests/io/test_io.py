"""save and load: round trips, interchange with the safetensors library, hostile files."""

from __future__ import annotations

import contextlib
import io
import json
import math
import pickle
from collections import OrderedDict

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinygrad_mem as tm
from tinygrad_mem.errors import DataDependenceError, DeviceError, FileFormatError, NotOfferedError
from tinygrad_mem.safetensors import write_header

POOL = tm.device("cpu").pool
DTYPES = ["float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"]


def round_trip(obj, **options):
    file = io.BytesIO()
    tm.save(obj, file)
    file.seek(0)
    return tm.load(file, **options)


def same(a, b) -> bool:
    if isinstance(a, tm.Tensor):
        return (
            isinstance(b, tm.Tensor)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.numpy().tobytes() == b.numpy().tobytes()
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b or (a != a and b != b)


tensors = st.sampled_from(DTYPES).flatmap(
    lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)).map(tm.tensor)
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
keys = (
    st.text(max_size=4)
    | st.integers()
    | st.booleans()
    | st.none()
    | st.sampled_from(["$tensor", "$pairs", "__metadata__", "a.b"])
)
nested = st.recursive(
    tensors | plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)


@given(nested)
def test_whatever_is_saved_is_loaded(obj):
    assert same(obj, round_trip(obj))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (2, 3)])
def test_the_safetensors_library_reads_ours_and_we_read_its(dtype, shape, tmp_path):
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    tm.save({"x": tm.tensor(array), "half": tm.zeros(3, dtype=tm.float16)}, ours)
    found = safetensors.numpy.load_file(ours)
    assert found["x"].dtype == dtype
    np.testing.assert_array_equal(found["x"], array)
    safetensors.numpy.save_file({"x": array, "b": np.ones(3, np.uint8)}, theirs, metadata={"format": "np"})
    loaded = tm.load(theirs)
    assert set(loaded) == {"x", "b"}
    np.testing.assert_array_equal(loaded["x"].numpy(), array)


def test_a_pytorch_state_dict_saved_by_safetensors_loads(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    safetensors.torch.save_file(model.state_dict(), tmp_path / "m.safetensors")
    loaded = tm.load(tmp_path / "m.safetensors")
    assert set(loaded) == set(model.state_dict())
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(loaded[name].numpy(), value.numpy())


def test_views_and_tensors_of_others_are_saved_by_value():
    base = tm.tensor(np.arange(12.0).reshape(3, 4))
    views = {"t": base.transpose(0, 1), "part": base[1:, ::2], "column": base[:, 1]}
    assert same({k: v.contiguous() for k, v in views.items()}, round_trip(views))
    assert round_trip(tm.from_numpy(np.arange(3))).tolist() == [0, 1, 2]


def test_tensors_that_require_grad_are_saved_as_values():
    loaded = round_trip({"w": tm.ones(2, requires_grad=True), "y": tm.ones(2, requires_grad=True) * 2})
    assert not loaded["w"].requires_grad
    assert loaded["y"].tolist() == [2.0, 2.0]


def test_tied_tensors_are_written_once_and_are_one_again():
    w = tm.ones(1000)
    file = io.BytesIO()
    tm.save({"encoder": w, "decoder": w.detach(), "part": w[:10]}, file)
    assert 4040 <= file.tell() < 4600
    file.seek(0)
    loaded = tm.load(file)
    assert loaded["encoder"] is loaded["decoder"]
    assert loaded["part"].tolist() == [1.0] * 10


def test_optimizer_like_states():
    state = {
        "state": {0: {"step": 3, "exp_avg": tm.ones(2)}},
        "param_groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}],
    }
    assert same(state, round_trip(state))
    assert math.isnan(round_trip({"x": float("nan"), "y": float("inf")})["x"])
    assert round_trip(OrderedDict(b=1, a=2)) == {"b": 1, "a": 2}
    assert round_trip([np.float32(0.5), np.int64(3)]) == [0.5, 3]


def test_order_of_a_flat_dict_is_kept():
    state = {"z": tm.zeros(1, dtype=tm.uint8), "a": tm.zeros(1, dtype=tm.float64), "m": tm.zeros(2)}
    assert list(round_trip(state)) == ["z", "a", "m"]


def test_map_location_and_default_device():
    loaded = round_trip({"x": tm.ones(3)}, map_location="meta")
    assert loaded["x"].device == "meta"
    file = io.BytesIO()
    tm.save(tm.ones(3), file)
    file.seek(0)
    with tm.device("meta"):
        assert tm.load(file).device == "meta"
    with pytest.raises(DeviceError, match="expected one of"):
        round_trip(tm.ones(1), map_location="gpu")


def on_gpus(devices: str) -> io.BytesIO:
    """A file of the tensors w = [1, 2] and step = [3], with what it says of their devices."""
    file = io.BytesIO()
    shapes = {"w": (np.dtype("float32"), (2,)), "step": (np.dtype("float32"), (1,))}
    write_header(file, shapes, {"tinygrad_mem.devices": devices})
    file.write(np.array([1, 2, 3], "float32").tobytes())
    file.seek(0)
    return file


def test_tensors_of_a_gpu_that_is_not_here_need_a_map_location():
    devices = '{"w": "cuda:0"}'
    said = r"'w' was saved on cuda:0, and cuda:0 is not here: .*load\(..., map_location='cpu'\) puts all tensors on the cpu"
    for missing in (None, {"cuda:1": "cpu"}, lambda tensor, place: None):
        with pytest.raises(DeviceError, match=said):
            tm.load(on_gpus(devices), map_location=missing)
    for place in ("cpu", tm.device("cpu"), {"cuda:0": "cpu"}, {"cuda:0": tm.device("cpu")}, lambda tensor, place: tensor):
        found = tm.load(on_gpus(devices), map_location=place)
        assert {name: t.tolist() for name, t in found.items()} == {"w": [1.0, 2.0], "step": [3.0]}
        assert {str(t.device) for t in found.values()} == {"cpu"}


def test_a_dict_and_a_function_say_where_each_tensor_is():
    devices, asked = '{"w": "cuda:0"}', []

    def moved(tensor: tm.Tensor, place: str) -> tm.Tensor | None:
        asked.append((tensor.tolist(), place))
        return tensor.to("meta") if place == "cuda:0" else None

    for where in (moved, {"cuda:0": "meta"}):
        found = tm.load(on_gpus(devices), map_location=where)
        assert (found["w"].device, found["step"].device) == ("meta", "cpu")
    assert asked == [([1.0, 2.0], "cuda:0"), ([3.0], "cpu")]
    with pytest.raises(TypeError, match="map_location returned 3; return the tensor that it is given, moved, or None"):
        tm.load(on_gpus(devices), map_location=lambda tensor, place: 3)


@pytest.mark.parametrize(
    "devices", ["[", "3", '{"v": "cuda:0"}', '{"w": "tpu:0"}', '{"w": 0}', '{"w": "cuda:x"}', '{"w": "cuda:0", "w": "cuda:1"}']
)
def test_devices_that_make_no_sense_are_refused(devices: str):
    with pytest.raises(FileFormatError, match="the devices in the metadata are damaged"):
        tm.load(on_gpus(devices), map_location="cpu")


@pytest.mark.cuda
@pytest.mark.parametrize("plain", [True, False])
def test_tensors_of_a_gpu_return_to_it(plain: bool):
    x = {"w": tm.arange(3.0, device="cuda"), "b": tm.ones(2)}
    saved = x if plain else [x, x["w"]]
    found = round_trip(saved)
    both = found if plain else found[0]
    assert {name: (str(t.device), t.tolist()) for name, t in both.items()} == {
        "w": ("cuda:0", [0.0, 1.0, 2.0]),
        "b": ("cpu", [1.0, 1.0]),
    }
    assert plain or found[1] is both["w"]
    assert round_trip({"w": x["w"]}, map_location="cpu")["w"].device == "cpu"
    assert round_trip({"w": x["w"]}, map_location={"cuda:0": "cpu"})["w"].device == "cpu"
    assert round_trip({"w": x["w"]}, map_location=lambda tensor, place: tensor.cuda())["w"].device == "cuda:0"
    with tm.device("meta"):
        assert round_trip({"w": x["w"]})["w"].device == "cuda:0"


def test_loading_takes_the_tensors_bytes_and_no_more():
    before = POOL.used_bytes()
    file = io.BytesIO()
    tm.save({"x": tm.ones(1024)}, file)
    file.seek(0)
    loaded = tm.load(file)
    assert POOL.used_bytes() == before + 4096
    del loaded
    assert POOL.used_bytes() == before


def test_a_file_object_is_read_from_where_it_stands_and_may_be_unseekable():
    file = io.BytesIO()
    file.write(b"head")
    tm.save(tm.ones(2), file)
    file.seek(4)
    assert tm.load(file).tolist() == [1.0, 1.0]

    class Pipe(io.BytesIO):
        def seekable(self):
            return False

    assert tm.load(Pipe(file.getvalue()[4:])).tolist() == [1.0, 1.0]


def test_a_path_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "model.safetensors"
    tm.save({"x": tm.ones(2)}, path)
    before = path.read_bytes()
    with pytest.raises(DataDependenceError, match="no values"):
        tm.save({"x": tm.ones(2), "y": tm.ones(2, device="meta")}, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    link = tmp_path / "latest"
    link.symlink_to(path)
    tm.save({"x": tm.zeros(2)}, str(link))
    assert link.is_symlink()
    assert tm.load(path)["x"].tolist() == [0.0, 0.0]
    with pytest.raises(FileNotFoundError):
        tm.load(tmp_path / "nowhere")


class Thing:
    pass


class Model:
    def state_dict(self):
        return {}


loop: list = []
loop.append(loop)


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"a": [1, Thing()]}, r"the object\['a'\]\[1\] is a Thing"),
        (Model(), r"save its state_dict\(\)"),
        ({(1, 2): 3}, r"keys are strings or numbers, found \(1, 2\)"),
        (lambda: None, "is a function"),
        (loop, "contains itself"),
    ],
    ids=range(5),
)
def test_what_cannot_be_saved_is_named(obj, message):
    with pytest.raises(TypeError, match=message):
        tm.save(obj, io.BytesIO())


def with_header(header, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def zipped() -> bytes:
    file = io.BytesIO()
    torch.save({"x": torch.ones(2)}, file)
    return file.getvalue()


def numpy_file() -> bytes:
    file = io.BytesIO()
    np.save(file, np.ones(2))
    return file.getvalue()


HOSTILE = {
    "empty": (b"", "8 bytes of header length at least, found 0"),
    "short": (b"abc", "found 3 bytes"),
    "huge header": ((2**63).to_bytes(8, "little") + b"{}", "not a safetensors file, or truncated"),
    "header beyond the end": (with_header({}, length=100), "its header should have 100 bytes"),
    "not json": (with_header(b"{nope"), "the header is not JSON"),
    "not utf-8": (with_header(b'{"\xff":1}'), "the header is not JSON"),
    "deep json": (with_header(b'{"x":' * 200_000), "the header is not JSON"),
    "a list": (with_header([1]), r"should be a JSON object, it begins with '\[1\]'"),
    "twice": (with_header(b'{"__metadata__":{"a":"1","a":"2"}}'), "the name 'a' appears twice"),
    "metadata": (with_header({"__metadata__": {"a": 1}}), "should hold strings only"),
    "no dtype": (with_header({"x": {"shape": [1]}}), "needs dtype, shape and data_offsets"),
    "entry": (with_header({"x": 3}), "needs dtype, shape and data_offsets"),
    "f8": (with_header({"x": entry("F8_E5M2", (4,))}, b"\0" * 4), "has dtype 'F8_E5M2'; offered are F16, BF16, F32"),
    "dtype": (with_header({"x": entry([1])}, b"\0" * 8), r"has dtype \[1\]"),
    "negative": (with_header({"x": entry(shape=(-2,))}, b"\0" * 8), r"has shape \[-2\]"),
    "fraction": (with_header({"x": entry(shape=(2.0,))}, b"\0" * 8), r"has shape \[2.0\]"),
    "true": (with_header({"x": entry(shape=(True, 2))}, b"\0" * 8), r"has shape \[True, 2\]"),
    "three offsets": (with_header({"x": entry(offsets=(0, 4, 8))}, b"\0" * 8), "data_offsets"),
    "wrong size": (with_header({"x": entry(shape=(3,))}, b"\0" * 8), "needs 12 bytes, its offsets span 8"),
    "backwards": (with_header({"x": entry(offsets=(8, 0))}, b"\0" * 8), "span -8"),
    "overflow": (with_header({"x": entry(shape=(2**32, 2**32), offsets=(0, 0))}), "needs 73786976294838206464 bytes"),
    "overlap": (
        with_header({"x": entry(), "y": entry(offsets=(4, 12))}, b"\0" * 12),
        "at byte 4, expected 8: it overlaps",
    ),
    "hole": (with_header({"x": entry(offsets=(4, 12))}, b"\0" * 12), "it leaves a hole"),
    "outside": (with_header({"x": entry()}, b"\0" * 4), "take 8 bytes, the file has 4: the file is truncated"),
    "trailing": (with_header({"x": entry()}, b"\0" * 9), "the file has 9: something follows"),
    "huge tensor": (with_header({"x": entry("U8", (2**60,), (0, 2**60))}), "the file is truncated"),
    "65 dimensions": (with_header({"x": entry("U8", (1,) * 65, (0, 1))}, b"\0"), "tensor 'x'"),
    "bool": (with_header({"x": entry("BOOL", (1,), (0, 1))}, b"\2"), "neither 0 nor 1"),
    "pytorch zip": (zipped(), "PyTorch checkpoint .* pickles inside can run code. Convert it where PyTorch is installed"),
    "pickle": (pickle.dumps({"x": 1}), "this is a pickle"),
    "npy": (numpy_file(), "a NumPy array: read it with numpy.load"),
    "hdf5": (b"\x89HDF\r\n\x1a\n" + b"\0" * 50, "an HDF5 file"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("where", ["file", "path"])
def test_damaged_and_foreign_files_are_refused(name, where, tmp_path):
    content, message = HOSTILE[name]
    before = POOL.used_bytes()
    source = io.BytesIO(content)
    if where == "path":
        source = tmp_path / "file"
        source.write_bytes(content)
    with pytest.raises(FileFormatError, match=message):
        tm.load(source)
    assert POOL.used_bytes() == before


@pytest.mark.parametrize("length", [0x280, 0x380, 0x480, 0x580])
def test_a_header_whose_length_begins_like_a_pickle_is_read(length):
    """The length of a header is the file's first bytes. Spaces may follow the header."""
    text = json.dumps({"x": entry()}).encode().ljust(length)
    found = tm.load(io.BytesIO(length.to_bytes(8, "little") + text + b"\0" * 8))
    assert (found["x"].numpy() == 0).all()


@pytest.mark.parametrize(
    "structure",
    [
        "{",
        '{"$tensor": "other"}',
        '{"$tensor": 3}',
        '{"$tensor": []}',
        '{"$pairs": [1]}',
        '{"$pairs": [[[], 1]]}',
        '{"$tuple": 1}',
        '{"$nope": 1}',
        '{"$tensor": "x", "y": 1}',
        "[" * 100_000,
    ],
    ids=range(10),
)
def test_damaged_descriptions_are_refused(structure):
    content = with_header({"__metadata__": {"tinygrad_mem": structure}, "x": entry()}, b"\0" * 8)
    with pytest.raises(FileFormatError, match="the description in the metadata is damaged"):
        tm.load(io.BytesIO(content))


@given(st.data())
def test_a_flipped_or_cut_file_never_does_worse_than_file_format_error(data):
    file = io.BytesIO()
    tm.save({"a": tm.ones(2, 3), "b": [tm.zeros(1, dtype=tm.bool), {"k": 1}]}, file)
    content = bytearray(file.getvalue())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    with contextlib.suppress(FileFormatError):
        tm.load(io.BytesIO(bytes(content)))


def test_arguments_that_pytorchs_load_takes(tmp_path):
    for library in (torch, tm):
        path = tmp_path / library.__name__
        library.save({"w": library.ones(2)}, path)
        for weights_only in (True, False, None):
            found = library.load(path, map_location="cpu", weights_only=weights_only)
            assert found["w"].tolist() == [1.0, 1.0]
    with pytest.raises(NotOfferedError, match="nothing here is pickled"):
        tm.load(path, pickle_module=object())

"""Calls and programs that allocate, beside those of ``tests/sturdy/calls.py``: a row for everything that is public."""

from __future__ import annotations

import copy
import functools
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tinygrad_mem as tm
from tests.sturdy.calls import IMAGE, Call, M, V, X, b, f, i
from tinygrad_mem import nn, optim, techniques
from tinygrad_mem.nn import functional as F


def _c(name: str, *args: Any, **kwargs: Any) -> Call:
    return Call(name, args, kwargs)


def _each(names: str, *args: Any, **kwargs: Any) -> list[Call]:
    return [Call(name, args, kwargs) for name in names.split()]


SQUARE = f(4, 4)
INITIAL = "uniform normal xavier_uniform xavier_normal kaiming_uniform kaiming_normal orthogonal eye"
_ADDS = "add sub mul truediv floordiv mod pow"
_BITS = "and or xor lshift rshift"

CALLS_BESIDE = [
    *_each("T.sgn_ T.nan_to_num_ T.relu_ T.leaky_relu_ T.logical_not_ T.tril_ T.triu_ sgn", X),
    *_each("F.relu_ F.elu_ F.leaky_relu_", X),
    *_each("T.positive T.__pos__ T.__neg__ T.__abs__ T.__reversed__", X),
    *_each(" ".join(f"T.__{name}__ T.__i{name}__" for name in _ADDS.split()), X, V),
    *_each(" ".join(f"T.__r{name}__" for name in _ADDS.split()), X, 2.0),
    *_each(" ".join(f"T.__{name}__ T.__i{name}__" for name in _BITS.split()), i(3, 4), i(4)),
    *_each(
        "T.__rand__ T.__ror__ T.__rxor__ T.__rlshift__ T.__rrshift__ T.bitwise_left_shift_ T.bitwise_right_shift_", i(3, 4), 2
    ),
    *_each("T.__invert__", i(3, 4)),
    *_each("T.__matmul__ T.__rmatmul__ T.__imatmul__", SQUARE, SQUARE),
    *_each("T.ge_ T.logical_and_ T.logical_or_", X, X),
    *_each("T.floor_divide_ T.clamp_max_ T.clamp_min_ clamp_max_ clamp_min_", X, 0.5),
    *_each("T.fill_diagonal_", X, 2.0),
    *_each("T.masked_scatter_ T.masked_scatter masked_scatter", X, b(3, 4), f(12)),
    _c("T.reshape_as", X, f(4, 3)),
    *_each("T.half T.float T.double T.bfloat16 T.long T.int T.short T.char T.byte T.bool T.cpu T.contiguous T.detach", X),
    *_each("T.__getitem__", X, i(2)),
    _c("T.__getitem__", M, (slice(None), i(2))),
    _c("T.__getitem__", M, (slice(None), i(), i(2))),
    _c("T.__getitem__", M, i()),
    _c("T.__setitem__", X, i(), 2.0),
    _c("T.__setitem__", M, (slice(None), i(2)), 2.0),
    *_each("T.__iter__", M),
    _c("T.type", X, "float64"),
    _c("T.new_tensor", X, [1.0, 2.0]),
    _c("empty", (3, 4)),
    _c("T.new_empty", X, (3, 4)),
    *_each("empty_like", X),
    _c("scalar_tensor", 2.0),
    _c("from_numpy", np.ones((3, 4), np.float32)),
    _c("as_tensor", np.ones((3, 4))),
    _c("F.upsample", IMAGE, scale_factor=2),
    _c("F.gumbel_softmax", X, hard=True),
    _c("F.linear_cross_entropy", X, f(5, 4), i(3, high=5)),
    *_each("cdist", X, X),
    *_each("T.pin_memory T.to_dense detach", X),
    _c("linalg.solve_triangular", SQUARE, f(4, 2), upper=True),
    *_each("linalg.norm linalg.vector_norm", X),
    *_each(" ".join(f"nn.init.{name}_" for name in INITIAL.split()), SQUARE),
    _c("nn.init.sparse_", X, 0.4),
    _c("cat", [f(0), X, X]),
    *_each("cartesian_prod", V, f(3), f(2)),
    *_each("nn.init.trunc_normal_ nn.init.ones_ nn.init.zeros_", X),
    *_each("nn.init.trunc_normal_", f(8, 3, 3, 3), std=0.02, a=-0.04, b=0.04),
    *_each("nn.init.constant_", X, 2.0),
    *_each("nn.init.dirac_", f(4, 4, 3)),
    *_each("nn.init.orthogonal_", f(6, 2, 3)),
]
"""Names that begin with ``T.`` are methods of their first argument, with ``F.`` functions of ``nn.functional``."""


# --- what is more than a call


def _net(width: int = 8) -> Any:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 4))


def _step(model: Any, x: Any, rule: Any = None, scaler: Any = None) -> None:
    loss = model(x).square().mean()
    (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is not None:
        scaler.step(rule)
        scaler.update()
    elif rule is not None:
        rule.step()


def _trained(model: Any = None, x: Any = None) -> Any:
    model = _net() if model is None else model
    _step(model, tm.randn(3, 6) if x is None else x, optim.Adam(model.parameters()))
    return model


def unpooled(n: int) -> None:
    sizes = (2, 4, 6, 6, 4)[: n + 2]
    y, at = getattr(F, f"max_pool{n}d")(tm.randn(*sizes, requires_grad=True), 2, return_indices=True)
    getattr(F, f"max_unpool{n}d")(y, at, 2).sum().backward()


def packed() -> None:
    r = nn.utils.rnn
    rows = [tm.randn(n, 4, requires_grad=True) for n in (5, 3, 1)]
    sequence = r.pack_sequence(rows)
    again = r.pack_padded_sequence(r.pad_sequence(rows, batch_first=True), [5, 3, 1], batch_first=True)
    layer = nn.GRU(4, 6, num_layers=2, bidirectional=True, batch_first=True)
    for each in (sequence, again):
        y, length = r.pad_packed_sequence(layer(each)[0], batch_first=True)
        (y.sum() + y.mean()).backward()
        del length, y
    r.unpack_sequence(sequence)
    r.unpad_sequence(r.pad_sequence(rows), [5, 3, 1])
    r.invert_permutation(tm.arange(3))


def clipped() -> None:
    u, model = nn.utils, _net()
    _step(model, tm.randn(3, 6))
    u.clip_grad_norm_(model.parameters(), 1.0)
    u.clip_grad_norm_(model.parameters(), 1.0, norm_type=float("inf"))
    u.clip_grad_value_(model.parameters(), 0.1)
    total = u.get_total_norm([p.grad for p in model.parameters()])
    u.clip_grads_with_norm_(model.parameters(), 1.0, total)


def vectors() -> None:
    model = _trained()
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())


def experts() -> None:
    x, weights = tm.randn(6, 8, requires_grad=True), tm.randn(2, 8, 16, requires_grad=True)
    F.grouped_mm(x, weights, offs=tm.tensor([2, 6], dtype=tm.int32)).sum().backward()


def weights_normed() -> None:
    layer = nn.utils.weight_norm(nn.Linear(6, 4))
    _trained(layer)
    nn.utils.remove_weight_norm(layer)
    _trained(layer)


def spectral_normed() -> None:
    layer = nn.utils.spectral_norm(nn.Linear(6, 4))
    _trained(layer)
    nn.utils.remove_spectral_norm(layer)
    _trained(layer)


def scaled() -> None:
    model = _net()
    rule, scaler = optim.AdamW(model.parameters()), tm.amp.GradScaler("cpu", init_scale=2.0)
    for _ in range(2):
        rule.zero_grad()
        with tm.autocast("cpu", dtype=tm.float16):
            _step(model, tm.randn(3, 6), rule, scaler)


class Custom(tm.autograd.Function):
    @staticmethod
    @tm.amp.custom_fwd(device_type="cpu", cast_inputs=tm.float32)
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    @tm.amp.custom_bwd(device_type="cpu")
    @tm.autograd.function.once_differentiable
    def backward(ctx: Any, gy: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 2 * x * gy


def differentiated() -> None:
    x = tm.randn(30, 5, requires_grad=True)
    y = Custom.apply(x)
    tm.autograd.grad(y.sum(), x, retain_graph=True)
    tm.autograd.backward(y, tm.ones_like(y))
    hook = x.register_hook(lambda g: g * 2)
    z = (x * 2).exp()
    z.retain_grad()
    z.register_hook(lambda g: None)
    z.sum().backward()
    hook.remove()
    tm.autograd.Variable(x.detach()).detach_().requires_grad_()
    w = tm.randn(30, 5, requires_grad=True)
    w.register_post_accumulate_grad_hook(lambda t: setattr(t, "grad", t.grad * 0))
    w.where(w > 0, 0.0).sum().backward()


def containers() -> None:
    layer = {"d_model": 8, "nhead": 2, "dim_feedforward": 16, "batch_first": True}
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**layer), 2)
    decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**layer), 2)
    parts = nn.ModuleList([nn.ModuleDict({"a": encoder}), nn.Sequential(nn.Linear(8, 8))])
    memory = encoder(tm.randn(2, 3, 8))
    decoder(parts[1](tm.randn(2, 4, 8)), memory).sum().backward()


TYPED = [f"{name}Tensor" for name in ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")]


def converted() -> None:
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    _trained(tm.from_torch(theirs))


def stand_ins() -> None:
    model = tm.compile(nn.DataParallel(nn.Sequential(nn.Linear(6, 6), nn.SyncBatchNorm(6))))
    _trained(model)
    for kind in (getattr(tm, name) for name in TYPED):
        kind(2, 3)
        kind([1, 2])


def drawn() -> None:
    d, scale = tm.distributions, tm.full((5, 3), 2.0, requires_grad=True)
    normal, others = d.Normal(_g(5, 3), scale), d.Normal(tm.zeros(5, 3), tm.ones(5, 3))
    x = normal.rsample()
    (normal.log_prob(x) + normal.entropy() + d.kl_divergence(normal, others) + normal.cdf(x)).sum().backward()
    d.Independent(normal, 1).log_prob(normal.sample()).sum().backward()
    for given in ({"logits": _g(5, 3)}, {"probs": tm.full((5, 3), 0.3, requires_grad=True)}):
        for kind in (d.Categorical, d.OneHotCategorical, d.Bernoulli):
            each = kind(**given)
            (each.log_prob(each.sample()).sum() + each.entropy().sum()).backward()


_FILE = io.BytesIO()
tm.save({"a": tm.ones(30, 40), "b": [tm.ones(3)]}, _FILE)


def read() -> None:
    tm.load(io.BytesIO(_FILE.getvalue()))
    tm.from_dlpack(np.ones((30, 100))) + tm.as_tensor(np.ones((30, 100)), dtype="float32")


def initial_by_old_names() -> None:
    for name in INITIAL.split():
        getattr(nn.init, name)(tm.empty(4, 4))
    nn.init.constant(tm.empty(4), 2.0)
    nn.init.dirac(tm.empty(4, 4, 3))
    nn.init.sparse(tm.empty(4, 4), 0.5)


def tokens() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens"
        tm.data.write_tokens(path, [np.arange(50)])
        for batch in tm.data.DataLoader(tm.data.TokenFile(path, 8), batch_size=2):
            del batch


def kept_otherwise() -> None:
    model, graph = _net(), tm.autograd.graph
    for hooks in (graph.save_on_cpu(), graph.saved_tensors_hooks(lambda t: t.half(), lambda t: t.float())):
        with hooks:
            loss = model(tm.randn(3, 6)).sum()
        loss.backward()


def made_again() -> None:
    from tinygrad_mem.utils.checkpoint import checkpoint, checkpoint_sequential

    model = _net()
    for keep in (True, False):
        checkpoint(model, tm.randn(3, 6, requires_grad=True), use_reentrant=keep).sum().backward()
        checkpoint_sequential(model, 2, tm.randn(3, 6, requires_grad=True), use_reentrant=keep).sum().backward()


def made_again_in_part() -> None:
    r = tm.recompute
    policy = r.CheckpointPolicy
    for kept in (["Linear"], lambda context, op, *args, **kwargs: policy.PREFER_SAVE):
        contexts = functools.partial(r.create_selective_checkpoint_contexts, kept)
        r.checkpoint(_net(), tm.randn(3, 6), use_reentrant=False, context_fn=contexts).sum().backward()


def wrapped_blocks() -> None:
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
    tm.recompute.apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Tanh))
    _trained(model)
    _trained(tm.recompute.checkpoint_wrapper(_net()))


def scheduled() -> None:
    r = tm.recompute
    model = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])
    for schedule in (r.uniform(4, 2), r.sqrt(4), r.revolve(4, 2), r.chain([r.Stage()] * 4, 20)):
        r.apply(model, schedule)(tm.randn(3, 6)).sum().backward()
    for how in ("sqrt", 2):
        blocks = r.checkpoint_blocks(copy.deepcopy(model), how)
        blocks(tm.randn(3, 6)).sum().backward()

    @r.checkpointed
    def activated(x: Any) -> Any:
        return model(x).tanh()

    with r.count_ops():
        activated(tm.randn(3, 6)).sum().backward()


def loaded() -> None:
    d = tm.utils.data
    rows = d.TensorDataset(tm.randn(20, 6), tm.randint(0, 4, (20,)))
    parts = d.random_split(rows, [12, 8])
    sets = [rows, d.ConcatDataset(parts), d.Subset(rows, [3, 1, 2]), d.StackDataset(rows, rows)]
    for data in sets:
        for batch in d.DataLoader(data, batch_size=4, shuffle=True):
            del batch
    samplers = [d.RandomSampler(rows), d.SequentialSampler(rows), d.SubsetRandomSampler([1, 2, 3])]
    samplers.append(d.WeightedRandomSampler([0.5] * 20, 6))
    for sampler in samplers:
        for batch in d.DataLoader(rows, batch_sampler=d.BatchSampler(sampler, 3, False)):
            del batch
    d.default_collate([(tm.ones(3), 1, 2.0, {"a": np.ones(2)})] * 4)
    d.default_convert([np.ones(3), 1])


class Stream(tm.data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([tm.ones(5), tm.zeros(5)])


def streamed() -> None:
    d = tm.data
    for batch in d.DataLoader(d.ChainDataset([Stream(), Stream()]), batch_size=3):
        del batch
    for batch in d.DataLoader(d.TokenStream(lambda: iter([np.arange(40)]), 6), batch_size=2):
        del batch


def of_lengths() -> None:
    d = tm.data
    rows = [np.arange(n) for n in (5, 3, 8, 2)]
    collate = [d.PadCollate(), d.pack_collate]
    for each in collate:
        for batch in d.DataLoader(rows, batch_sampler=d.BucketBatchSampler([5, 3, 8, 2], 2), collate_fn=each):
            del batch
        for batch in d.DataLoader(rows, batch_sampler=d.TokenBatchSampler([5, 3, 8, 2], 10), collate_fn=each):
            del batch


def accumulated() -> None:
    model = _net()
    rule = optim.Adam(model.parameters())
    window = techniques.accumulate(model, rule, 2)
    for _ in range(4):
        window.backward(model(tm.randn(3, 6)).square().mean(), 3)


def reversed_blocks() -> None:
    part = lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Tanh())  # noqa: E731
    blocks = [techniques.ReversibleBlock(part(), part()) for _ in range(3)]
    _trained(techniques.ReversibleSequential(*blocks))


def techniques_each() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), techniques.InPlaceABN(4), nn.Flatten(), nn.Linear(64, 4))
    _trained(model, tm.randn(2, 3, 6, 6))
    x = tm.randn(2, 4, 6, 6, requires_grad=True)
    mean = tm.zeros(4)
    techniques.inplace_abn(x * 1, tm.ones(4), tm.zeros(4), mean, tm.ones(4), True).sum().backward()
    for saved in (techniques.compressed, techniques.save_on_cpu, techniques.checkpoints_on_cpu):
        with saved():
            loss = _net()(tm.randn(30, 6)).sum()
        loss.backward()
    techniques.chunked(_net(), tm.randn(4, 6), 2).sum().backward()
    techniques.tiled(_net(), tm.randn(5, 6), 2).sum().backward()


def lora_layers() -> None:
    model = techniques.lora(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3)), r=2, use_dora=True)
    model(tm.ones(5, 4)).sum().backward()
    techniques.LoraLinear(nn.Linear(4, 6), 2, 4, 0.5, True, False, tm.float32)(tm.ones(5, 4)).sum().backward()


def quantized_layers() -> None:
    for quant_type in ("nf4", "int8"):
        model = techniques.quantize_frozen(nn.Sequential(nn.Linear(64, 6), nn.Linear(6, 3)), quant_type)
        techniques.lora(model, r=2, target_modules="0")(tm.ones(5, 64)).sum().backward()
    techniques.QuantizedLinear(nn.Linear(64, 6), "nf4", True)(tm.ones(5, 64))


def paged_state() -> None:
    model = _net()
    optimizer = techniques.paged_optimizer(optim.Adam(model.parameters()))
    for _ in range(2):
        model(tm.randn(3, 6)).sum().backward()
        optimizer.step()


def in_backward() -> None:
    model = _net()
    kept = techniques.optimizer_in_backward(optim.Adam(model.parameters()))
    for _ in range(2):
        _step(model, tm.randn(3, 6))
    del kept


def selected() -> None:
    positions = tm.tensor(np.array([0, 2, 5]))
    techniques.select_labelled(tm.randn(2, 3, 4), tm.zeros(2, 3, dtype="int64"), positions=positions)


def labelled() -> None:
    techniques.labelled_positions(tm.zeros(2, 3, dtype="int64"))


def saved_and_read() -> None:
    model = _trained()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    _net().load_state_dict(state)
    copy.deepcopy(model)


def by_closures() -> None:
    p = nn.Parameter(tm.linspace(0.5, 1.5, 64, dtype=tm.float64))
    rule = optim.LBFGS([p], lr=1e-2, max_iter=3, history_size=2, tolerance_change=-1.0)  # the longest history, as is assumed

    def closure() -> tm.Tensor:
        rule.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a prediction says what it assumes
        for _ in range(2):
            rule.step(closure)


def rows_of_tables() -> None:
    table = nn.Embedding(20, 4, sparse=True)
    rule = optim.SparseAdam(table.parameters(), lr=0.1)
    for _ in range(3):
        rule.zero_grad()
        table(tm.randint(0, 20, (8,))).square().mean().backward()
        table(tm.randint(0, 20, (3,))).square().mean().backward()
        rule.step()
    small = nn.Embedding(20, 4, max_norm=0.5, scale_grad_by_freq=True, padding_idx=3)
    _trained(small, tm.randint(0, 20, (5,)))


def everything_of_a_module() -> None:
    model = _net()
    model.half().float().double().to(tm.float32)
    model.requires_grad_(False)
    model.requires_grad_(True)
    model.zero_grad()
    tm.Tensor.data.fset(model[0].weight, tm.ones(8, 6))  # type: ignore[attr-defined]
    nn.Parameter(tm.randn(3))
    nn.Buffer(tm.randn(3))
    nn.ParameterList([tm.randn(3)])
    nn.ParameterDict({"a": tm.randn(3)})


def fused() -> None:
    nn.utils.fuse_conv_bn_eval(nn.Conv2d(3, 5, 2).eval(), nn.BatchNorm2d(5).eval())(tm.randn(2, 3, 8, 8))
    nn.utils.fuse_linear_bn_eval(nn.Linear(6, 5).eval(), nn.BatchNorm1d(5).eval())(tm.randn(2, 6))


PROGRAMS: dict[str, Callable[[], Any]] = {
    "F.max_unpool2d": lambda: unpooled(2),
    "nn.utils.rnn.pack_sequence pack_padded_sequence pad_packed_sequence pad_sequence unpack_sequence unpad_sequence "
    "invert_permutation PackedSequence packed layout_of Layout": packed,
    "nn.utils.clip_grad_norm_ clip_grad_value_ get_total_norm clip_grads_with_norm_": clipped,
    "nn.utils.parameters_to_vector vector_to_parameters": vectors,
    "nn.utils.fuse_conv_bn_eval fuse_conv_bn_weights fuse_linear_bn_eval fuse_linear_bn_weights": fused,
    "F.grouped_mm": experts,
    "nn.utils.weight_norm remove_weight_norm": weights_normed,
    "nn.utils.spectral_norm remove_spectral_norm": spectral_normed,
    "amp.GradScaler autocast": scaled,
    "autograd.Function backward grad Variable T.backward T.register_hook T.retain_grad T.register_post_accumulate_grad_hook "
    "T.detach_ T.requires_grad_ T.where amp.custom_fwd amp.custom_bwd autograd.once_differentiable": differentiated,
    "autograd.graph.save_on_cpu saved_tensors_hooks": kept_otherwise,
    "recompute.checkpoint checkpoint_sequential": made_again,
    "recompute.create_selective_checkpoint_contexts CheckpointPolicy SelectiveCheckpointContext": made_again_in_part,
    "recompute.apply_activation_checkpointing checkpoint_wrapper Checkpointed": wrapped_blocks,
    "recompute.apply uniform sqrt revolve chain checkpoint_blocks checkpointed count_ops Schedule Stage Scheduled": scheduled,
    "data.TensorDataset ConcatDataset Subset StackDataset random_split DataLoader RandomSampler SequentialSampler BatchSampler "
    "SubsetRandomSampler WeightedRandomSampler default_collate default_convert": loaded,
    "nn.ModuleList ModuleDict Sequential TransformerEncoder TransformerDecoder": containers,
    "nn.DataParallel SyncBatchNorm": stand_ins,
    f"compile {' '.join(TYPED)}": stand_ins,
    "distributions.Normal Categorical Bernoulli OneHotCategorical Independent kl_divergence": drawn,
    "load from_dlpack": read,
    "from_torch": converted,
    f"nn.init.constant dirac sparse {INITIAL}": initial_by_old_names,
    "data.TokenFile write_tokens": tokens,
    "data.ChainDataset IterableDataset TokenStream": streamed,
    "data.PadCollate pack_collate BucketBatchSampler TokenBatchSampler Padded Packed": of_lengths,
    "techniques.accumulate": accumulated,
    "techniques.ReversibleBlock ReversibleSequential": reversed_blocks,
    "techniques.InPlaceABN inplace_abn compressed save_on_cpu checkpoints_on_cpu chunked tiled": techniques_each,
    "techniques.optimizer_in_backward": in_backward,
    "techniques.lora LoraLinear": lora_layers,
    "techniques.paged_optimizer": paged_state,
    "techniques.quantize_frozen QuantizedLinear": quantized_layers,
    "techniques.select_labelled": selected,
    "nn.Module T.__deepcopy__": saved_and_read,
    "nn.Embedding optim.SparseAdam": rows_of_tables,
    "optim.LBFGS": by_closures,
    "nn.Parameter Buffer ParameterList ParameterDict": everything_of_a_module,
}
"""The names of what it runs -> the program. A place stands before the first of its names."""


# --- values that decide


def _t(*values: float) -> Any:
    return tm.tensor(np.array(values))


def _drawn(*values: int) -> Any:
    """The same numbers, which a prediction does not know: 0 was drawn and added."""
    return _t(*values) + tm.randint(0, 1, (len(values),))


def _g(*sizes: int) -> Any:
    return tm.randn(*sizes, requires_grad=True)


def _written(*keys: Any) -> None:
    x = _g(5, 3) * 1
    for key in keys:
        x[key() if callable(key) else key] = 2.0
    x.sum().backward()


def _clipped(value: float) -> None:
    model = nn.Linear(3, 3)
    (model(tm.ones(2, 3)) * value).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=value == 1)


def _stepped(name: str, value: float) -> None:
    p = tm.zeros(5000, requires_grad=True)
    rule = getattr(optim, name)([p])
    for _ in range(2):
        p.grad = tm.ones(5000) * value
        rule.step()


def _compressed(value: float) -> None:
    with techniques.compressed():
        loss = (_g(40, 40) * value).relu().sum()
    loss.backward()


def _slower() -> None:
    model = nn.Linear(3, 3)
    schedule = optim.lr_scheduler.ReduceLROnPlateau(optim.SGD(model.parameters(), lr=0.1))
    schedule.step(model(tm.ones(2, 3)).sum())


def _averaged() -> None:
    norm = nn.BatchNorm1d(3, momentum=None)
    for _ in range(3):
        norm(_g(6, 3)).sum().backward()


nan, inf = float("nan"), float("inf")
EQUAL: dict[str, Callable[[], Any]] = {
    "known: classes that are counted": lambda: F.one_hot(_t(0, 1, 2)),
    "known: repeat_interleave": lambda: tm.repeat_interleave(_g(3), _t(1, 2, 3) - 1).sum().backward(),
    "known: bincount": lambda: tm.bincount(_t(1, 2, 3) * 2),
    "known: a slice": lambda: _g(5)[: (tm.tensor(3) + 1)].sum().backward(),
    "known: a mask of ones": lambda: tm.zeros(int(tm.ones(2, 3).bool().sum()), int((tm.zeros(2) + tm.full((2,), 3.0))[0])),
    "known: sizes": lambda: tm.zeros(int(tm.arange(5).sum()), int(_t(1, 7).max())),
    "known: unsorted lengths": lambda: nn.utils.rnn.pack_padded_sequence(
        tm.randn(2, 4, 2), _t(1, 3) + 1, True, enforce_sorted=False
    ),
    "rows from the end": lambda: _g(5, 3)[_t(-1, 0, -5, -1)].sum().backward(),
    "wide rows from the end": lambda: _g(5, 100)[_t(-1, 0, -5, -1)].sum().backward(),
    "two indices from the end": lambda: _g(5, 3, 2)[_t(-1, 0, -5), _t(-3, 2, -1)].sum().backward(),
    "columns from the end": lambda: _g(5, 3, 2)[:, _t(-1, 0, -3)].sum().backward(),
    "written from the end": lambda: _written(_t(-1, 0), (_t(-1, 2), _t(-3, 1)), (slice(None), _t(-1))),
    "filled from the end": lambda: (_g(5, 3) * 1).index_fill_(0, _t(-1, -2), 2.0).sum().backward(),
    "taken from the end": lambda: tm.take(_g(5, 3), _t(-1, -15)).sum().backward(),
    "added from the end": lambda: tm.index_put(_g(5, 3), (_t(-1, -1),), _g(2, 3), True).sum().backward(),
    "a number that was drawn": lambda: _g(5, 3)[tm.randint(0, 5, ())].sum().backward(),
    "a column that was drawn": lambda: _g(5, 3)[1:, tm.randint(0, 3, ())].sum().backward(),
    "the place of the largest": lambda: (lambda x: x[x[:, 0].argmax()].sum().backward())(_g(5, 3)),
    "a place that was drawn": lambda: _written(lambda: tm.randint(0, 5, ()), lambda: (tm.randint(0, 5, ()), slice(1, 3))),
    "a place of 32 bits": lambda: _g(5, 3)[tm.tensor(np.int32(2))].sum().backward(),
    "rows above the norm": lambda: F.embedding(_t(0, 1, 1), tm.ones(4, 5) * 9, max_norm=1.0).sum(),
    "rows below the norm": lambda: F.embedding(_t(0, 1, 1), tm.ones(4, 5) * 0.1, max_norm=10.0).sum(),
    "bags that are empty": lambda: F.embedding_bag(_t(0, 1, 1, 2), _g(5, 3), _t(0, 0, 4), mode="max").sum().backward(),
    "nan to num": lambda: tm.nan_to_num(_g(5) * nan).sum().backward(),
    "nan sorted": lambda: tm.sort(_g(30) * nan).values.sum().backward(),
    "nan in quantile": lambda: tm.quantile(_g(3, 40) * nan, tm.tensor([0.1, 0.5]), 1).sum().backward(),
    "quantiles by a tensor": lambda: tm.quantile(_g(3, 40), tm.tensor([0.1, 0.5]), 1).sum().backward(),
    "no quantile": lambda: tm.quantile(_g(3, 40), tm.zeros(0), 1),
    "a norm that is finite": lambda: _clipped(1),
    "a norm that is nan": lambda: _clipped(nan),
    "draws by weights": lambda: tm.multinomial(tm.ones(3, 5), 2),
    "classes that are counted": lambda: F.one_hot(_t(0, 1, 2), 5),
    "the mean of all batches": _averaged,
    "no target": lambda: F.cross_entropy(_g(4, 3), _t(-100, -100, -100, -100)).backward(),
    "equal ends of a histogram": lambda: tm.histc(tm.ones(20)),
    "nothing dropped": lambda: F.dropout(_g(5, 50), 0.0).sum().backward(),
    "all dropped": lambda: F.dropout(_g(5, 50), 1.0).sum().backward(),
    "all masked": lambda: F.scaled_dot_product_attention(*[_g(1, 2, 4, 8)] * 3, tm.zeros(4, 4) > 1).sum().backward(),
    "printed": lambda: str(tm.randn(30, 30)),
    "no bins": lambda: tm.bincount(tm.zeros(0, dtype="int64"), minlength=3),
    "bounds that are tensors": lambda: tm.clamp(_g(3), tm.tensor(0.0), tm.tensor(1.0)).sum().backward(),
    "a plateau": _slower,
    "states of nan": lambda: _stepped("Adam8bit", nan),
    "states of 0": lambda: _stepped("Adam8bit", 0.0),
    "factors of inf": lambda: _stepped("Adafactor", inf),
    "compressed zeros": lambda: _compressed(0.0),
    "compressed numbers": lambda: _compressed(1.0),
    "a number written by a mask": lambda: _masked(2.0),
    "a slice": lambda: tm.ones(5)[: tm.tensor(3)],
    "narrow": lambda: tm.ones(5).narrow(0, tm.tensor(1), 2),
    "arange": lambda: tm.arange(tm.tensor(5)),
    "zeros": lambda: tm.zeros(int(tm.tensor(5))),
    "unsorted lengths": lambda: nn.utils.rnn.pack_padded_sequence(tm.randn(2, 4, 2), _t(2, 4), True, enforce_sorted=False),
}
"""What the run does depends on these values; what it allocates does not."""


def _masked(value: Any) -> None:
    x = tm.ones(3)
    x[x > 0] = value


def _sparse(what: Callable[[Any], Any]) -> None:
    table = nn.Embedding(20, 4, sparse=True)
    table(_t(1, 1, 2)).sum().backward()
    what(table.weight)


REFUSED: dict[str, Callable[[], Any]] = {
    "classes that are not counted": lambda: F.one_hot(_drawn(0, 1, 2)),
    "elements by a mask": lambda: tm.ones(3)[tm.ones(3) > 0],
    "elements by bytes": lambda: tm.ones(3)[tm.tensor(np.array([1, 0, 1], np.uint8))],
    "masked_select": lambda: tm.masked_select(tm.ones(3), tm.ones(3) > 0),
    "masked_scatter": lambda: tm.masked_scatter(tm.zeros(3), tm.ones(3) > 0, tm.ones(3)),
    "numbers written by a mask": lambda: _masked(tm.zeros(3)),
    "index_put by a mask": lambda: tm.index_put(tm.ones(3), (tm.ones(3) > 0,), tm.ones(3)),
    "nonzero": lambda: tm.nonzero(tm.ones(3)),
    "argwhere": lambda: tm.argwhere(tm.ones(3)),
    "where": lambda: tm.where(tm.ones(3) > 0),
    "unique": lambda: tm.unique(tm.ones(3)),
    "unique_consecutive": lambda: tm.unique_consecutive(_t(1, 1, 2)),
    "repeat_interleave": lambda: tm.repeat_interleave(tm.ones(3), _drawn(1, 2, 3)),
    "bincount": lambda: tm.bincount(_drawn(1, 2, 3)),
    "bool": lambda: bool(tm.rand(1)),
    "any": lambda: 1 if tm.rand(3).any() else 0,
    "equal": lambda: tm.equal(tm.rand(2), tm.ones(2)),
    "allclose": lambda: tm.allclose(tm.rand(2), tm.ones(2)),
    "in": lambda: 1 in tm.rand(3),
    "max of Python": lambda: max(tm.rand(3)),
    "tolist": lambda: tm.rand(3).tolist(),
    "numpy": lambda: np.asarray(tm.ones(3)),
    "save": lambda: tm.save(tm.ones(3), io.BytesIO()),
    "a sparse gradient summed": lambda: _sparse(lambda w: w.grad.coalesce()),
    "labels": lambda: techniques.labelled_positions(tm.zeros(2, 3, dtype="int64")),
    "a slice": lambda: tm.ones(5)[: _drawn(3)[0]],
    "narrow": lambda: tm.ones(5).narrow(0, _drawn(1)[0], 2),
    "arange": lambda: tm.arange(_drawn(5)[0]),
    "zeros": lambda: tm.zeros(int(_drawn(5))),
    "unsorted lengths": lambda: nn.utils.rnn.pack_padded_sequence(tm.randn(2, 4, 2), _drawn(2, 4), True, enforce_sorted=False),
}
"""What the run allocates, or whether it goes on, depends on these values."""

SILENT = {
    "numbers, switches and types: no memory": (
        "Tensor Generator Size device finfo iinfo is_tensor T.data_ptr T.dim T.edge T.element_size T.get_device "
        "T.is_complex T.is_contiguous T.is_floating_point T.is_inference T.ndimension T.nelement T.numel T.size "
        "T.storage_offset T.stride T.__len__ T.__dlpack_device__ autograd.FunctionContext autograd.Node autograd.apply "
        "autograd.apply_ autograd.graph.leaves "
        "amp.is_autocast_available clear_autocast_cache get_autocast_dtype "
        "get_default_device get_default_dtype T.is_pinned TensorType "
        "is_autocast_cache_enabled is_autocast_enabled enable_grad inference_mode no_grad set_grad_enabled "
        "is_grad_enabled is_inference_mode_enabled set_default_device set_default_dtype initial_seed manual_seed seed "
        "set_rng_state is_complex get_float32_matmul_precision set_float32_matmul_precision set_default_tensor_type "
        "distributions.Distribution nn.init.calculate_gain nn.LinearCrossEntropyOptions optim.Optimizer data.Dataset "
        "data.Sampler data.WorkerInfo data.get_worker_info techniques.Technique"
    ),
    "switches of recompute, and its parts without tensors": (
        "recompute.front recompute.noop_context_fn recompute.Profile recompute.set_checkpoint_debug_enabled "
        "recompute.set_checkpoint_early_stop"
    ),
    "answers with a Python value, or a file: refused": (
        "T.__array__ T.__array_wrap__ T.__bool__ T.__contains__ T.__dlpack__ T.__float__ T.__index__ T.__int__ T.item "
        "T.numpy T.tolist get_rng_state save techniques.labelled_positions"
    ),
    "compares numbers: refused": "autograd.gradcheck",
    "predicts, or measures, itself": "recompute.profile",
    "needs a GPU": "T.cuda",
    "an op, which a function calls": "nn.init.Upload",
    "what switches are made with": "autograd.graph.signal_safe",
}
"""Why names have no row -> the names: the short list of what a test needs not try."""

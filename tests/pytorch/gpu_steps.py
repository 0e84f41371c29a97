"""Training steps of networks, language models and optimizers as programs for a GPU."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.networks import MORE, WORKLOADS, Workload, under_pytorch
from tests.pytorch import language_model
from tests.pytorch.gpu_more_ops import MORE_OPS
from tests.pytorch.gpu_ops import BF16, F16, F32, GPU, OPS, t
from tests.pytorch.hugging_face import MODELS, RULES
from tests.pytorch.hugging_face import PROGRAMS as OF_HUGGING_FACE

STEPS = 2


def _made(workload: Workload) -> Any:
    with torch.device(GPU):
        model = getattr(under_pytorch(workload.module), workload.network)(**workload.arguments)
    return model, *(torch.tensor(each, device=GPU) for each in workload.data())


def forward(workload: Workload, mode: Callable[[], Any]) -> Any:
    """One forward; nothing is kept for backward."""
    model, x, _ = _made(workload)
    with mode():
        return model, model(x)


def training(
    workload: Workload,
    rule: Callable[..., torch.optim.Optimizer],
    autocast: torch.dtype | None = None,
    whole: bool = False,
    last: bool = False,
) -> Any:
    """Training steps.

    Args:
        autocast: the dtype; in float16 the loss is scaled, and gradients are clipped.
        whole: the network is checkpointed as one function.
        last: channels are last in memory.
    """
    model, x, y = _made(workload)
    if last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.to(memory_format=torch.channels_last)
    optimizer, scaler = rule(model.parameters()), torch.amp.GradScaler("cuda", enabled=autocast is F16)
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cuda", autocast) if autocast else nullcontext():
            found = checkpoint(model, x, use_reentrant=False) if whole else model(x)
            loss = F.cross_entropy(found.flatten(0, -2), y.flatten())
        scaler.scale(loss).backward()
        if autocast is F16:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    return model, optimizer, loss


SGD, ADAM = partial(torch.optim.SGD, lr=1e-3, momentum=0.9), partial(torch.optim.Adam, lr=1e-4)
WAYS: dict[str, Callable[[Workload], Any]] = {
    "forward": partial(forward, mode=torch.no_grad),
    "inference": partial(forward, mode=torch.inference_mode),
    "SGD": partial(training, rule=SGD),
    "Adam": partial(training, rule=ADAM),
    "AdamW fused": partial(training, rule=partial(torch.optim.AdamW, lr=1e-4, fused=True)),
    "Adam single": partial(training, rule=partial(ADAM, foreach=False)),
    "checkpoint": partial(training, rule=SGD, whole=True),
    "bf16": partial(training, rule=SGD, autocast=BF16),
    "f16 scaler clip": partial(training, rule=ADAM, autocast=F16),
    "channels last": partial(training, rule=SGD, last=True),
    "channels last bf16": partial(training, rule=SGD, last=True, autocast=BF16),
}


def hugging_face(name: str, way: str, dtype: torch.dtype) -> Any:
    """One forward under ``no_grad``, or training steps, of a small model."""
    ids = torch.zeros(2, 32, dtype=torch.long, device=GPU)
    model = MODELS[name]().to(GPU, dtype)
    if way == "forward":
        with torch.no_grad():
            return model, model(input_ids=ids).logits
    rule = RULES[way]([parameter for parameter in model.parameters() if parameter.requires_grad])
    for _ in range(STEPS):
        rule.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        rule.step()
    return model, rule, loss


def llama(attention: str, dtype: torch.dtype, checkpointed: bool) -> Any:
    """Training steps of a Llama of four layers."""
    import transformers  # it takes seconds, and is not needed to list what there is

    config = transformers.AutoConfig.for_model(
        "llama", hidden_size=512, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, vocab_size=8000,
        intermediate_size=1024,
    )  # fmt: skip
    config._attn_implementation = attention
    model = transformers.AutoModelForCausalLM.from_config(config).to(GPU, dtype)
    if checkpointed:
        model.gradient_checkpointing_enable()
    rule = torch.optim.AdamW(model.parameters(), 1e-4)
    ids = torch.randint(0, 8000, (2, 512), device=GPU)
    for _ in range(STEPS):
        rule.zero_grad()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        rule.step()
    return model, rule


def optimizer(rule: str, options: dict[str, Any]) -> Any:
    """Three training steps of a network of two layers."""
    model = nn.Sequential(nn.Linear(300, 500), nn.ReLU(), nn.Linear(500, 10)).to(GPU)
    optimizer = getattr(torch.optim, rule)(model.parameters(), lr=0.01, **options)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 300, device=GPU)).square().mean().backward()
        optimizer.step()
    return model, optimizer


OPTIMIZERS = (
    "SGD", "Adam", "AdamW", "NAdam", "RAdam", "Adagrad", "Adadelta", "Adamax", "RMSprop", "Rprop", "ASGD", "Adafactor",
)  # fmt: skip
OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"foreach": False}, {"fused": True}, {"capturable": True}, {"maximize": True}, {"weight_decay": 0.1},
    {"amsgrad": True}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}, {"centered": True},
)  # fmt: skip

# --- others ---------------------------------------------------------------------------------------------------------------


def recorded_model() -> Any:
    """Training steps of the language model of the other recordings."""
    model = language_model.Model(language_model.Size(context=128), GPU)
    rule = language_model.AdamW(model.parameters())
    ids, targets = (torch.zeros(4, 128, dtype=torch.int64, device=GPU) for _ in range(2))
    for _ in range(STEPS):
        logits = model(ids)
        loss = language_model.cross_entropy(logits, targets)
        loss.backward()
        rule.step()
    return model, rule


def mapped() -> torch.Tensor:
    weight = t(100, 5, grad=False)
    return torch.func.vmap(lambda row: torch.tanh(weight @ row))(t(30, 5, grad=False))


def gradient_penalty() -> Any:
    model, x = nn.Sequential(nn.Linear(100, 100), nn.Tanh(), nn.Linear(100, 1)).to(GPU), t(20, 100)
    (found,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (found.norm(2, 1) - 1).square().mean().backward()
    return model


def many_blocks() -> Any:
    """3,000 requests of all sizes, in any order; 60 blocks live."""
    kept, pick = [], random.Random(3)
    for _ in range(3000):
        size = pick.choice([100, 5000, 300_000, 2_000_000, 7_000_000]) * pick.randint(1, 5)
        kept.append(torch.empty(size, dtype=torch.uint8, device=GPU))
        if len(kept) > 60:
            kept.pop(pick.randrange(60))
    return kept


PROGRAMS: dict[str, Callable[[], Any]] = {
    **{
        f"net/{workload.name}/{way}": partial(run, workload)
        for workload in [*WORKLOADS, *MORE]
        for way, run in WAYS.items()
        if "last" not in way or len(workload.shape) == 4
    },
    **{f"hf/{name}/{way}": partial(hugging_face, name, way, F32) for name, way in OF_HUGGING_FACE},
    **{f"hf/{name}/{way} bf16": partial(hugging_face, name, way, BF16) for name, way in OF_HUGGING_FACE if way != "SGD"},
    **{
        f"hfbig/{attention} {dtype} {checkpointed}": partial(llama, attention, dtype, checkpointed)
        for attention in ("sdpa", "eager")
        for dtype in (F32, BF16)
        for checkpointed in (False, True)
    },
    **{f"optim/{rule}/{options}": partial(optimizer, rule, options) for rule in OPTIMIZERS for options in OPTIONS},
    **{f"op/{name}": run for name, run in {**OPS, **MORE_OPS}.items()},
    "lm/train": recorded_model,
    "other/vmap": mapped,
    "other/gradient penalty": gradient_penalty,
    "other/allocator": many_blocks,
}

"""Programs with models of transformers, predicted for a GPU with PyTorch's own autograd. Importing this needs both."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
from torch import nn

from ..pytorch import Prediction, predict
from .torch_runs import returned

transformers: Any = import_module("transformers")  # a type checker would read its thousands of files
GPU, TOKENS = "cuda", 512
BLOCK, SMALL = 2048, 4096
"""Numbers that share a scale in 8-bit states, and the size below which states stay in 32 bits, both as in bitsandbytes."""


class MomentsInBytes(torch.optim.Optimizer):
    """Keeps what bitsandbytes keeps for Adam in 8 bits. Its kernels update in place, so a step takes no more."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if self.state[p]:
                    continue
                dtype = torch.uint8 if p.numel() >= SMALL else torch.float32
                self.state[p] = {i: torch.empty_like(p, dtype=dtype) for i in range(2)}
                if dtype is torch.uint8:
                    self.state[p] |= {i: torch.empty(-(-p.numel() // BLOCK), device=p.device) for i in range(2, 4)}


def _optimizer(rule: str, parameters: Any) -> torch.optim.Optimizer:
    if rule == "adafactor":
        return transformers.Adafactor(parameters, lr=1e-4, scale_parameter=False, relative_step=False)
    return MomentsInBytes(parameters) if rule == "adam8bit" else torch.optim.AdamW(parameters, foreach=False)


def _bert(recomputed: bool = False) -> Any:
    """BERT-large for classification, on the GPU."""
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    config = transformers.BertConfig(**sizes, use_cache=False)
    config._attn_implementation = "eager"
    torch.ones((1, 1)).to(GPU)
    model = transformers.BertForSequenceClassification(config)
    if recomputed:
        model.activation_checkpointing_enable()
    return model.train().to(GPU)


def bert_weights() -> Prediction:
    """BERT-large is moved to the GPU."""
    return predict(_bert)


def bert_training(batch: int, recomputed: bool = False, half: bool = False, rule: str = "adamw") -> Prediction:
    """Two steps on ``batch`` sequences of 512 tokens; ``half``: with autocast to float16.

    Gradients are set to zero and stay, as in PyTorch of 2022. So steps that accumulate over such batches have the same peak.
    """

    def run() -> None:
        model = _bert(recomputed)
        optimizer = _optimizer(rule, model.parameters())
        scaler = torch.amp.GradScaler(GPU, enabled=half)
        for _ in range(2):
            ids = torch.zeros(batch, TOKENS, dtype=torch.int64, device=GPU)
            labels = torch.zeros(batch, dtype=torch.int64, device=GPU)
            with torch.autocast(GPU, torch.float16, enabled=half):
                loss = model(input_ids=ids, labels=labels).loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            model.zero_grad(set_to_none=False)

    return predict(run)


def llama_activations() -> int:
    """The bytes that Llama of 7 billion parameters keeps for backward in float16, scores in memory, beside its parameters."""
    config = transformers.LlamaConfig(intermediate_size=11_008, use_cache=False)  # the other sizes are its by default
    config._attn_implementation = "eager"

    def run() -> int:
        with torch.device(GPU):
            model = transformers.LlamaForCausalLM(config)
        model.half()
        before = torch.cuda.memory_allocated()
        ids = torch.zeros(8, 512, dtype=torch.int64, device=GPU)
        loss = model(input_ids=ids, labels=ids).loss
        kept = torch.cuda.memory_allocated() - before
        del loss  # until here it holds the graph
        return kept

    return returned(run)

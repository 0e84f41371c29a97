"""The catalogue of techniques, one row each. Made from it: the planner, the tips, the tables of techniques in the pages."""

from __future__ import annotations

from dataclasses import dataclass, field

LEVELS = ("identical", "close", "approximate")
"""Levels of the numbers compared with a plain step: the same bits; other rounding; more noise than that."""


@dataclass(frozen=True)
class Technique:
    """One way to save memory.

    Attributes:
        name: the key in ``TABLE``.
        title: the name in words.
        use: public names, from ``tinygrad_mem`` on.
        memory: what becomes smaller, and by how much.
        price: what it costs.
        numbers: one of ``LEVELS``.
        equal: the same in words: how the numbers compare with those of a plain step.
        lessons: file names in ``tutorials/``, without ``.py``.
        tips: names of the tips that measure it.
        pytorch: PyTorch's name for it, from ``torch`` on; "" if there is none.
        tests: the file of its tests, from ``tests/`` on; "" for ``techniques/test_NAME.py``.
        not_with: name of another technique -> why the two cannot be used together. Only one of the two rows says so.
    """

    name: str
    title: str
    use: tuple[str, ...]
    memory: str
    price: str
    numbers: str
    equal: str
    lessons: tuple[str, ...]
    tips: tuple[str, ...]
    pytorch: str = ""
    tests: str = ""
    not_with: dict[str, str] = field(default_factory=dict, hash=False)


_ROWS = (
    Technique(
        "recompute", "recompute", ("utils.checkpoint.checkpoint", "utils.checkpoint.checkpoint_sequential"),
        "a checkpointed function keeps only its inputs; n equal layers in sqrt(n) segments keep 2 sqrt(n) results instead of n",
        "at most one more forward",
        "identical", "bit for bit",
        ("08_recompute_segments", "09_recompute_chains", "10_recompute_right"),
        ("checkpoint", "checkpoint_sequential", "optimal_checkpoints"),
        pytorch="utils.checkpoint.checkpoint",
    ),
    Technique(
        "in_backward", "optimizer in backward", ("techniques.optimizer_in_backward",),
        "one gradient at a time instead of all",
        "a call of the optimizer for each parameter; to clip by the norm of all gradients, a second backward",
        "identical", "bit for bit",
        ("11_optimizers",), ("in_backward",),
        pytorch="Tensor.register_post_accumulate_grad_hook",
        not_with={
            "accumulation": "a gradient is complete only after the last part of the batch",
            "loss_scaling": "gradients are scaled until all of them are known to be finite",
        },
    ),
    Technique(
        "offload", "offload", ("autograd.graph.save_on_cpu", "techniques.checkpoints_on_cpu"),
        "tensors saved for backward, or the inputs of checkpoints alone, are kept in host memory",
        "two copies between device and host",
        "identical", "bit for bit",
        ("22_one_card",), ("offload",),
        pytorch="autograd.graph.save_on_cpu",
        not_with={"compression": "one of the two, the inner context, receives the saved tensors"},
    ),
    Technique(
        "inplace_activations", "activations in place", ("nn.ReLU",),
        "one array of the activation's size in forward; nothing in backward",
        "nothing; refused where backward needs the input",
        "identical", "bit for bit",
        ("02_in_place",), ("inplace_activation", "inplace_operators"),
        pytorch="nn.ReLU", tests="autograd/test_inplace.py",
    ),
    Technique(
        "accumulation", "accumulation", ("techniques.accumulate",),
        "activations of one micro-batch instead of the batch: 1 / k; all gradients stay",
        "more and smaller kernels",
        "close", "rounding of sums; batch norm sees the parts",
        ("04_batch_and_accumulation",), ("split_batch", "accumulation"),
    ),
    Technique(
        "chunking", "loss and MLP in tiles", ("nn.functional.linear_cross_entropy", "techniques.tiled", "techniques.chunked"),
        "the scores of one tile instead of all scores and their gradient; the inside of an MLP for one tile of tokens",
        "they are computed again in backward",
        "close", "rounding of sums",
        ("15_long_sequences", "22_one_card"), ("chunking", "tiled"),
        pytorch="nn.functional.linear_cross_entropy",
    ),
    Technique(
        "selection", "labelled positions only", ("techniques.select_labelled",),
        "logits of labelled positions instead of all",
        "a gather, and a scatter in backward",
        "close", "rounding of sums",
        ("15_long_sequences",), ("selection",),
    ),
    Technique(
        "attention", "attention without scores", ("nn.functional.scaled_dot_product_attention",),
        "one number per query row instead of one per pair of positions",
        "the scores are computed again in backward",
        "close", "rounding of sums",
        ("15_long_sequences",), ("attention",),
        pytorch="nn.functional.scaled_dot_product_attention", tests="ops/test_attention.py",
    ),
    Technique(
        "padding", "less padding", ("utils.data.PadCollate", "utils.data.BucketBatchSampler", "utils.data.TokenBatchSampler"),
        "activations of padding, which are as large as those of tokens",
        "batches of different shapes, in another order",
        "close", "rounding of sums",
        ("14_padding",), ("dynamic_padding", "packed_sequences"),
        tests="data/test_sequences.py",
    ),
    Technique(
        "inplace", "batch norm and activation in place", ("techniques.InPlaceABN",),
        "one array instead of two for each pair of batch norm and activation",
        "a division per element in backward",
        "close", "rounding of an inverse: about ulp(y) / abs(weight)",
        ("13_leaner_models",), ("inplace",),
    ),
    Technique(
        "reversible", "reversible blocks", ("techniques.ReversibleSequential",),
        "blocks keep nothing: activations do not grow with depth",
        "one more forward",
        "close", "rounding of recomputed inputs, which adds up over depth",
        ("13_leaner_models",), ("reversible",),
    ),
    Technique(
        "autocast", "autocast", ("amp.autocast",),
        "half of the activations that products save; added: a half-precision copy of each weight that a product uses",
        "a pass per step over each weight, and over each activation that changes its dtype",
        "approximate", "products in float16 or bfloat16, sums in float32",
        ("07_half_precision_autocast",), ("autocast", "float32_sums"),
        pytorch="amp.autocast", tests="amp/test_autocast.py",
    ),
    Technique(
        "loss_scaling", "loss scaling", ("amp.GradScaler",),
        "nothing by itself: float16 gradients no longer underflow; added: one number",
        "one pass over the gradients; steps whose gradients overflow are skipped",
        "approximate", "scales cancel out, being powers of two; some steps are skipped",
        ("05_half_precision_loss_scaling",), ("static_loss_scale", "dynamic_loss_scale"),
        pytorch="amp.GradScaler", tests="amp/test_grad_scaler.py",
    ),
    Technique(
        "master_weights", "float16 with master weights", ("optim.Optimizer",),
        "half of parameters, gradients and activations; added: 4 bytes per parameter for the float32 copy",
        "one pass per step that rounds each parameter",
        "approximate", "forward and backward in float16 or bfloat16, updates in float32",
        ("06_half_precision_master_weights",), ("half", "master_weights"),
        tests="optim/test_masters.py",
    ),
    Technique(
        "light_optimizers", "lighter optimizers", ("optim.AdamW8bit", "optim.SGD8bit", "optim.Adafactor"),
        "optimizer state: Adam's 8 bytes per parameter become 2.004; Adafactor keeps a row and a column of each matrix",
        "the state is quantized in each step",
        "approximate", "another update rule, see the docstring",
        ("11_optimizers",), ("momentum", "sgd", "half_states", "eight_bit", "adafactor"),
        pytorch="optim.Adafactor", tests="optim/test_eight_bit.py",
    ),
    Technique(
        "few_moments", "optimizers with few moments",
        ("optim.Lion", "optim.AdamMini", "optim.Muon", "optim.GaLore", "optim.APOLLO", "optim.Adam4bit", "optim.AdaLomo"),
        "optimizer state: Adam's 8 bytes per parameter become 4 to 0.01, see the table in `optim`",
        "another rate must be found; Muon and GaLore need a workspace for products and an SVD",
        "approximate", "other update rules, see the docstrings",
        (), ("four_bit", "lion", "adam_mini", "muon", "galore", "apollo_mini", "adalomo"),
        pytorch="optim.Muon", tests="optim/test_light.py",
    ),
    Technique(
        "lora", "LoRA", ("techniques.lora",),
        "gradients and optimizer state of the frozen weights: with Adam 12 of 16 bytes per parameter; the weights stay",
        "two thin products beside each linear layer",
        "approximate", "another model: only a correction of low rank is trained",
        ("22_one_card",), ("lora",),
    ),
    Technique(
        "paged", "paged optimizer state", ("techniques.paged_optimizer",),
        "optimizer state is kept in host memory; in a step the device holds that of one parameter at a time",
        "the state crosses the bus twice in each step",
        "identical", "bit for bit",
        (), ("paged",),
    ),
    Technique(
        "quantized", "frozen weights in 4 or 8 bits", ("techniques.quantize_frozen",),
        "frozen weights: 0.516 bytes each in NF4 with double quantization, and 1 in int8, with 4 a row; activations stay",
        "each product dequantizes its weight, in forward and in backward",
        "approximate", "another model: its weights are rounded",
        ("22_one_card",), ("quantized",),
    ),
    Technique(
        "compression", "compressed activations", ("techniques.compressed",),
        "saved activations take 16, 8, 4 or 2 bits per element, and 8 bytes per group",
        "a pass over them in forward and one in backward",
        "approximate", "noise in gradients: right on average; the error is below a group's range / (2**bits - 1)",
        ("17_your_own",), ("compression",),
    ),
    Technique(
        "data_parallel", "data parallel", ("nn.parallel.DistributedDataParallel",),
        "activations: those of a rank's part of the batch, 1 / N on N ranks; added: buckets of the size of all gradients",
        "each rank sends 2 (N - 1) / N of the gradients' bytes",
        "close", "rounding of sums; batch norm sees the parts",
        ("20_zero_stages",), ("data_parallel",),
        pytorch="nn.parallel.DistributedDataParallel", tests="distributed/test_data_parallel.py",
        not_with={"in_backward": "a gradient is complete only after it was averaged over the ranks"},
    ),
    Technique(
        "zero_1", "ZeRO 1", ("distributed.optim.ZeroRedundancyOptimizer",),
        "optimizer state: that of a rank's own parameters, 1 / N if they divide evenly; parameters and gradients stay",
        "beside data parallel, (N - 1) / N of the parameters' bytes are sent in each step",
        "close", "rounding of sums",
        ("20_zero_stages",), ("zero_1",),
        pytorch="distributed.optim.ZeroRedundancyOptimizer", tests="distributed/test_zero_optimizer.py",
        not_with={"in_backward": "no rank updates all parameters"},
    ),
    Technique(
        "zero_2", "ZeRO 2", ("distributed.fsdp.fully_shard",),
        "gradients and optimizer state: 1 / N; parameters are whole from their forward to their backward",
        "as data parallel: 2 (N - 1) / N of the parameters' bytes are sent",
        "close", "rounding of sums",
        ("20_zero_stages",), ("zero_2",),
        pytorch="distributed.fsdp.fully_shard", tests="distributed/test_fsdp.py",
        not_with={
            "data_parallel": "the ranks have different rows of the parameters",
            "zero_1": "the optimizer's state is divided already",
        },
    ),
    Technique(
        "zero_3", "ZeRO 3", ("distributed.fsdp.fully_shard",),
        "parameters, gradients and optimizer state: 1 / N; added: the units that are gathered, at most two at a time",
        "3 (N - 1) / N of the parameters' bytes are sent: half as much again as data parallel",
        "close", "rounding of sums",
        ("20_zero_stages",), ("zero_3",),
        pytorch="distributed.fsdp.fully_shard", tests="distributed/test_fsdp.py",
        not_with={
            "data_parallel": "the ranks have different rows of the parameters",
            "zero_1": "the optimizer's state is divided already",
            "zero_2": "a unit is divided once",
        },
    ),
    Technique(
        "tensor_parallel", "tensor parallel", ("distributed.tensor.parallel.parallelize_module",),
        "weights, their gradients and optimizer state, and what is between a column and a row layer: 1 / N",
        "for each pair of a column and a row layer, an all-reduce of the activations in forward and one in backward",
        "close", "rounding of sums",
        (), ("tensor_parallel",),
        pytorch="distributed.tensor.parallel.parallelize_module", tests="distributed/test_tensor_parallel.py",
    ),
    Technique(
        "sequence_parallel", "sequence parallel", ("distributed.tensor.parallel.SequenceParallel",),
        "what norms, dropouts and column layers keep between tensor parallel layers: 1 / N",
        "in place of each all-reduce a reduce-scatter and an all-gather; column layers gather their input again in backward",
        "close", "rounding of sums",
        (), ("sequence_parallel",),
        pytorch="distributed.tensor.parallel.SequenceParallel", tests="distributed/test_mesh.py",
    ),
    Technique(
        "pipeline", "pipeline parallel", ("distributed.pipelining.Schedule1F1B",),
        "everything of the layers of other stages; stage i of p keeps activations of min(p - i, m) of m micro-batches",
        "(p - 1) / m of a step's time each rank waits; activations are sent between stages",
        "close", "rounding of sums; batch norm sees the parts",
        ("21_pipelines",), ("pipeline",),
        pytorch="distributed.pipelining.Schedule1F1B", tests="distributed/test_pipelining.py",
    ),
    Technique(
        "context_parallel", "context parallel", ("distributed.context_parallel.ring_attention",),
        "activations: those of a rank's part of each sequence, 1 / N; added: two blocks of other ranks' keys and values",
        "keys and values go to every rank in forward and in backward, and their gradients once",
        "close", "rounding of sums",
        (), ("context_parallel",),
        pytorch="distributed.tensor.experimental.context_parallel", tests="distributed/test_context_parallel.py",
    ),
)  # fmt: skip
TABLE = {row.name: row for row in _ROWS}


def reason_against(a: str, b: str) -> str | None:
    """The reason for which techniques ``a`` and ``b`` cannot be used together; ``None`` if they can."""
    return TABLE[a].not_with.get(b) or TABLE[b].not_with.get(a)


def of_tip(tip: str) -> Technique | None:
    """The technique that a tip measures; ``None`` if the tip is about something else."""
    return next((row for row in _ROWS if tip in row.tips), None)

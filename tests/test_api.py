"""The public names, as data: each exists, takes PyTorch's parameters by PyTorch's names, and says what it does."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import get_testing_overrides

import tinygrad_mem as tm

NAMES = {
    "": "tensor as_tensor from_numpy zeros ones empty full zeros_like ones_like empty_like full_like arange linspace "
    "eye tril triu rand randn randint randperm bernoulli multinomial normal manual_seed Generator get_rng_state "
    "set_rng_state float16 half float32 float float64 double int8 int16 int32 int64 long uint8 bool Size device "
    "get_default_dtype set_default_device no_grad enable_grad set_grad_enabled inference_mode is_grad_enabled add "
    "sub mul div pow neg abs sign exp expm1 log log1p log2 log10 sqrt rsqrt reciprocal square sin cos tan asin "
    "acos atan sinh cosh tanh erf sigmoid floor ceil round trunc remainder fmod maximum minimum clamp where lerp "
    "addcmul addcdiv isnan isinf isfinite nan_to_num masked_fill sum mean prod var std amax amin max min argmax "
    "argmin norm logsumexp cumsum cumprod all any count_nonzero topk sort argsort median reshape flatten "
    "unflatten squeeze unsqueeze transpose t permute movedim swapaxes broadcast_to repeat_interleave tile cat "
    "stack split chunk unbind narrow select diff roll flip meshgrid gather scatter scatter_add index_select "
    "index_add index_put take_along_dim masked_select matmul mm bmm mv dot outer addmm baddbmm einsum tensordot "
    "bilinear save load from_dlpack",
    "autograd": "backward grad Function gradcheck Variable graph.saved_tensors_hooks",
    "Tensor": "shape size dim ndim numel nbytes element_size dtype device is_leaf grad grad_fn requires_grad requires_grad_ "
    "data detach detach_ clone contiguous is_contiguous stride storage_offset data_ptr item tolist numpy cpu cuda "
    "to type_as half float double long int bool backward register_hook retain_grad T mT copy_ fill_ zero_ normal_ "
    "uniform_ bernoulli_ view expand expand_as repeat unfold index_put_ register_post_accumulate_grad_hook "
    "new_zeros new_ones new_full new_empty add_ sub_ mul_ div_ masked_fill_ scatter_ scatter_add_ index_add_ "
    "clamp_",
    "nn.functional": "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d max_pool1d max_pool2d max_pool3d "
    "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool2d "
    "batch_norm layer_norm group_norm instance_norm rms_norm normalize dropout dropout1d dropout2d alpha_dropout "
    "relu relu_ relu6 leaky_relu elu selu celu gelu silu mish softplus softsign tanh sigmoid hardsigmoid "
    "hardswish hardtanh prelu glu threshold softmax log_softmax embedding one_hot pad interpolate pixel_shuffle "
    "unfold fold mse_loss l1_loss smooth_l1_loss huber_loss cross_entropy nll_loss kl_div binary_cross_entropy "
    "binary_cross_entropy_with_logits cosine_similarity cosine_embedding_loss",
    "nn": "Module Parameter Sequential ModuleList ModuleDict ParameterList Identity Flatten Unflatten Upsample "
    "ReflectionPad2d ZeroPad2d Linear Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d MaxPool2d AvgPool2d "
    "AdaptiveAvgPool2d BatchNorm1d BatchNorm2d BatchNorm3d LayerNorm GroupNorm InstanceNorm2d RMSNorm Dropout "
    "Dropout2d Embedding CrossEntropyLoss MSELoss",
    "nn.init": "uniform_ normal_ trunc_normal_ constant_ ones_ zeros_ eye_ xavier_uniform_ xavier_normal_ kaiming_uniform_ "
    "kaiming_normal_ orthogonal_ calculate_gain",
    "nn.utils": "clip_grad_norm_ clip_grad_value_ parameters_to_vector vector_to_parameters",
    "optim": "SGD Adam AdamW RMSprop Adagrad Adadelta",
    "optim.lr_scheduler": "StepLR MultiStepLR ExponentialLR CosineAnnealingLR LambdaLR OneCycleLR ReduceLROnPlateau LinearLR "
    "SequentialLR",
    "utils.data": "Dataset IterableDataset TensorDataset ConcatDataset Subset random_split RandomSampler SequentialSampler "
    "BatchSampler DataLoader default_collate",
    "utils.dlpack": "from_dlpack to_dlpack",
    "utils.checkpoint": "checkpoint checkpoint_sequential noop_context_fn set_checkpoint_early_stop CheckpointError "
    "set_checkpoint_debug_enabled CheckpointPolicy SelectiveCheckpointContext create_selective_checkpoint_contexts",
}
PATHS = [".".join(filter(None, (place, name))) for place, names in NAMES.items() for name in names.split()]
NOT_OURS = {"out", "layout", "memory_format", "pin_memory", "dtype", "device", "requires_grad", "generator", "sparse_grad"}
"""Parameters that PyTorch has for what is not offered, or that its override table leaves out or adds."""

OTHERWISE = {
    "bmm": "out_dtype: half precision on a GPU only",
    "mm": "out_dtype: half precision on a GPU only",
    "broadcast_to": "the documented name is input; the table says self",
    "diag_embed": "the documented name is offset; the table says diagonal",
    "isin": "the documented names are elements and test_elements; the table says e and te",
    "split_with_sizes": "its second argument is split_sizes; the table tells split's",
    "dot": "the documented names are input and tensor; the table says other",
    "isfinite": "the documented name is input; the table says tensor",
    "isinf": "the documented name is input; the table says tensor",
    "logsumexp": "the documented name is dim; the table says names",
    "split": "the method's first argument is the tensor, whatever its name",
    "swapdims": "the documented names are dim0 and dim1; the table says axis0 and axis1",
    "topk": "the documented names are largest and sorted; the table says descending",
    "where": "the documented names are input and other; the table says x and y",
    "xlogy": "the documented names are input and other; the table says x and y",
}


def found(root: Any, path: str) -> Any:
    for name in path.split("."):
        root = getattr(root, name)
    return root


@pytest.mark.parametrize("path", PATHS)
def test_it_exists_where_pytorch_has_it(path: str):
    if path in ATTRIBUTES:
        assert hasattr(tm.zeros(2), path.removeprefix("Tensor."))
        return
    found(torch, path)
    found(tm, path)


ATTRIBUTES = {"Tensor.device"}  # set by every tensor for itself
OVERRIDES = get_testing_overrides()


def shared_functions() -> list[str]:
    """Functions of ours that PyTorch has in the same place, and whose parameters its override table tells."""
    paths = []
    for place, root, other in (("", tm, torch), ("nn.functional.", tm.nn.functional, torch.nn.functional)):
        for name, value in vars(root).items():
            theirs = getattr(other, name, None)
            if inspect.isfunction(value) and not name.startswith("_") and callable(theirs) and theirs in OVERRIDES:
                paths.append(place + name)
    return sorted(paths)


@pytest.mark.parametrize("path", [p for p in shared_functions() if p not in OTHERWISE])
def test_parameters_have_pytorchs_names(path: str):
    theirs = found(torch, path)
    dummy = inspect.signature(theirs if inspect.isfunction(theirs) and "functional" in path else OVERRIDES[theirs]).parameters
    mine = inspect.signature(found(tm, path)).parameters
    if any(p.kind is p.VAR_POSITIONAL for p in (*mine.values(), *dummy.values())):
        pytest.skip("sizes or tensors one by one")
    missing = [n for n, p in dummy.items() if n not in mine and n not in NOT_OURS and p.kind is not p.VAR_KEYWORD]
    assert not missing, f"ours has {list(mine)}, PyTorch {list(dummy)}"


def test_every_public_function_says_what_it_does():
    silent = []
    for place, root in (
        ("", tm),
        ("nn.functional.", tm.nn.functional),
        ("Tensor.", tm.Tensor),
        ("nn.", tm.nn),
        ("optim.", tm.optim),
    ):
        for name, value in vars(root).items():
            if (inspect.isfunction(value) or inspect.isclass(value)) and not name.startswith("_") and not inspect.getdoc(value):
                silent.append(place + name)
    assert silent == []


NUMPYS = [
    ("sum", {"axis": 1, "keepdims": True}), ("mean", {"axis": (0, 2)}), ("amax", {"axis": 0, "keepdims": True}),
    ("argmax", {"axis": -1}), ("softmax", {"axis": 1}), ("std", {"axis": 0}), ("cumsum", {"axis": 2}), ("max", {"axis": 0}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given"), NUMPYS)
def test_numpys_names_of_arguments_are_understood(name: str, given: dict):
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    for ours, theirs in (
        (getattr(tm, name)(tm.tensor(x.numpy()), **given), getattr(torch, name)(x, **given)),
        (getattr(tm.tensor(x.numpy()), name)(**given), getattr(x, name)(**given)),
    ):
        pair = (ours[0], theirs[0]) if isinstance(ours, tuple) else (ours, theirs)
        torch.testing.assert_close(torch.tensor(pair[0].numpy()), pair[1])


ONE, TWO = np.int64(1), np.int64(2)
NUMPYS_NUMBERS = {
    "sum": lambda lib, x: x.sum(ONE),
    "mean": lambda lib, x: lib.mean(x, (np.int64(0), TWO)),
    "std": lambda lib, x: x.std(dim=ONE),
    "softmax": lambda lib, x: lib.nn.functional.softmax(x, ONE),
    "chunk": lambda lib, x: lib.cat(x.chunk(TWO, ONE)),
    "squeeze": lambda lib, x: x[None].squeeze(np.int64(0)),
    "roll": lambda lib, x: x.roll(ONE, TWO),
    "movedim": lambda lib, x: x.movedim(ONE, np.int64(0)),
    "tile": lambda lib, x: x.tile(ONE, TWO),
    "tile of one": lambda lib, x: lib.tile(x, dims=(2,)),
    "repeat_interleave": lambda lib, x: x.repeat_interleave(TWO, ONE),
    "max_pool2d": lambda lib, x: lib.nn.functional.max_pool2d(x, TWO),
    "conv2d": lambda lib, x: lib.nn.functional.conv2d(x[None], x[None, :, :2, :2], None, TWO, ONE),
    "a layer": lambda lib, x: lib.nn.AvgPool2d(TWO, [ONE, TWO])(x),
    "normalize": lambda lib, x: lib.nn.functional.normalize(x, dim=ONE),
    "scatter": lambda lib, x: x.scatter(ONE, lib.zeros(3, 1, 5, dtype=lib.int64), np.float32(2)),
    "arange": lambda lib, x: lib.arange(np.int64(0), np.int64(5), TWO),
}


@pytest.mark.parametrize("name", NUMPYS_NUMBERS)
def test_numpys_numbers_are_taken_for_pythons(name: str):
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    ours, theirs = NUMPYS_NUMBERS[name](tm, tm.tensor(x.numpy())), NUMPYS_NUMBERS[name](torch, x)
    torch.testing.assert_close(torch.tensor(ours.numpy()), theirs)


def test_numpys_numbers_do_not_hide_an_error():
    with pytest.raises(IndexError, match="Dimension out of range"):
        tm.ones(2, 3).sum(np.int64(5))
    with pytest.raises(TypeError, match="argument 'dim'"):
        tm.ones(2, 3).sum(np.float64(0.5))


def test_numpys_names_are_no_second_names():
    with pytest.raises(TypeError, match="unexpected keyword argument 'axis'"):
        tm.sum(tm.ones(2, 3), axis=1, dim=0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'axis'"):
        tm.nn.functional.relu(tm.ones(2, 3), axis=1)

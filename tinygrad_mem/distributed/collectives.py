"""The collectives on tensors. None of them is differentiable, as in PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any

from ..autograd.tensor import Tensor
from ..dtypes import FLOATING
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, NotOfferedError, ShapeError
from .group import ProcessGroup, ReduceOp, Work
from .groups import inside, member

__all__ = (
    "all_gather", "all_gather_into_tensor", "all_reduce", "all_to_all_single", "barrier", "broadcast", "irecv", "isend",
    "recv", "reduce", "reduce_scatter_tensor", "send",
)  # fmt: skip


def _tensor(name: str, tensor: Any, group: ProcessGroup, parameter: str = "tensor") -> Any:
    """The array of a tensor that a collective may use."""
    if not isinstance(tensor, Tensor):
        raise ArgumentTypeError(
            f"{name}: Invalid function argument. Expected parameter `{parameter}` of type Tensor but got {type(tensor)}."
        )
    group.check_device(name, tensor)
    if not tensor.array.flags.c_contiguous:
        raise ShapeError(f"{name}: Tensors must be contiguous, found strides {tensor.stride()} of {list(tensor.shape)}")
    return tensor.array


def _op(name: str, op: Any, array: Any) -> ReduceOp:
    if not isinstance(op, ReduceOp):
        raise ArgumentTypeError(
            f"{name}: op must be one of ReduceOp.{', ReduceOp.'.join(o.name for o in ReduceOp)}, found {op!r}"
        )
    if op is ReduceOp.AVG and array.dtype.kind not in FLOATING:
        raise DTypeError(
            f"{name}: a mean of {array.dtype} would be cut: convert the tensor to a floating dtype, or take the SUM"
        )
    return op


def _done(name: str, work: Work, async_op: bool, *written: Tensor) -> Work | None:
    """Wait, unless the caller will; count the writes."""
    for tensor in written:
        tensor.storage.written(name)
    if async_op:
        return work
    work.wait()
    return None


def all_reduce(tensor: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Work | None:
    """Combine the tensors of all ranks, element by element; each rank's ``tensor`` gets the result.

    Args:
        tensor: contiguous; floating or integer (for a mean, floating); of one shape and dtype on all ranks.
        async_op: return a handle whose ``wait()`` waits, instead of waiting.

    Raises:
        ShapeError, DeviceError, DTypeError: the tensor is not as above.
        RankError: the ranks do not call the same, or one of them failed. ``tensor`` keeps its values if they do not.
    """
    if (found := member(group)) is None:
        return None
    array = _tensor("all_reduce", tensor, found)
    return _done("all_reduce", found.all_reduce(array, _op("all_reduce", op, array)), async_op, tensor)


def all_gather_into_tensor(
    output_tensor: Tensor, input_tensor: Tensor, group: Any = None, async_op: bool = False
) -> Work | None:
    """Write the inputs of all ranks into ``output_tensor``, one after the other: concatenated, or stacked.

    Args:
        output_tensor: contiguous, of ``world_size`` times the input's elements.
        input_tensor: of one shape and dtype on all ranks. It may be this rank's part of the output.

    Raises:
        ShapeError, DTypeError: the two do not fit.
        RankError: as :func:`all_reduce`.
    """
    if (found := member(group)) is None:
        return None
    name = "all_gather_into_tensor"
    out, array = _tensor(name, output_tensor, found, "output_tensor"), _tensor(name, input_tensor, found, "input_tensor")
    _fits(name, out, array, found.size(), "output tensor size must be equal to world_size times input tensor size")
    return _done(name, found.all_gather(out, array), async_op, output_tensor)


def _fits(name: str, large: Any, small: Any, times: int, rule: str) -> None:
    if large.dtype != small.dtype:
        raise DTypeError(f"{name}: input and output must have one dtype, found {small.dtype} and {large.dtype}")
    if large.size != times * small.size:
        raise ShapeError(f"{name}: {rule}: found {list(large.shape)} and {list(small.shape)} with {times} ranks")


def all_gather(tensor_list: list[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> Work | None:
    """Write the tensor of rank i into ``tensor_list[i]``.

    It asks for a buffer of all tensors, which is freed at the end. ``all_gather_into_tensor`` needs none.

    Raises:
        ShapeError, DTypeError: the list has another length than the group, or the tensors differ.
        NotOfferedError: ``async_op``; use ``all_gather_into_tensor``.
    """
    if (found := member(group)) is None:
        return None
    if async_op:
        raise NotOfferedError("all_gather: async_op is not offered for a list: use all_gather_into_tensor")
    if len(tensor_list) != found.size():
        raise ShapeError(f"all_gather: expected a list of {found.size()} tensors, one for each rank, found {len(tensor_list)}")
    array = _tensor("all_gather", tensor, found)
    for each in tensor_list:
        _fits("all_gather", _tensor("all_gather", each, found, "tensor_list"), array, 1, "all tensors must have one size")
    device = tensor.device
    whole = device.empty((found.size(), *array.shape), array.dtype)
    work = found.all_gather(whole, array)
    work.wait()
    for each, part in zip(tensor_list, whole, strict=True):
        device.kernels.copy(part, out=each.array)
    return _done("all_gather", Work(), False, *tensor_list)


def reduce_scatter_tensor(
    output: Tensor, input: Tensor, op: ReduceOp = ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Work | None:
    """Combine the inputs of all ranks, element by element; rank i's ``output`` gets the i-th part of the result.

    Args:
        output: contiguous, memory of its own.
        input: contiguous, of ``world_size`` times the output's elements, of one shape and dtype on all ranks; not changed.

    Raises:
        ShapeError, DTypeError: the two do not fit.
        RankError: as :func:`all_reduce`.
    """
    if (found := member(group)) is None:
        return None
    name = "reduce_scatter_tensor"
    out, array = _tensor(name, output, found, "output"), _tensor(name, input, found, "input")
    _fits(name, array, out, found.size(), "input tensor must be the same size as output size times world size")
    if output.device.xp.may_share_memory(out, array):
        raise ArgumentError(f"{name}: the output shares memory with the input: give it memory of its own")
    return _done(name, found.reduce_scatter(out, array, _op(name, op, array)), async_op, output)


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: int | None = None,
) -> Work | None:
    """Combine the tensors of all ranks, element by element, into that of rank ``dst``; the others' stay as they are.

    Raises: as :func:`broadcast`.
    """
    if (found := member(group)) is None:
        return None
    root = inside(group, dst, "reduce", group_dst)
    array = _tensor("reduce", tensor, found)
    work = found.reduce(array, root, _op("reduce", op, array))
    return _done("reduce", work, async_op, tensor)


def broadcast(
    tensor: Tensor, src: int | None = None, group: Any = None, async_op: bool = False, group_src: int | None = None
) -> Work | None:
    """Write the tensor of rank ``src`` into that of each rank.

    Args:
        src: a rank among all processes; ``group_src`` is one in the group.

    Raises:
        ArgumentError: the group has no such rank.
        RankError: as :func:`all_reduce`.
    """
    if (found := member(group)) is None:
        return None
    root = inside(group, src, "broadcast", group_src)
    return _done("broadcast", found.broadcast(_tensor("broadcast", tensor, found), root), async_op, tensor)


def broadcast_together(tensors: Iterable[tuple[int, Tensor]], group: Any) -> None:
    """Broadcast each tensor from its rank in the group, and wait when all are under way."""
    works = [broadcast(tensor, group=group, group_src=rank, async_op=True) for rank, tensor in tensors]
    for work in works:
        if work is not None:
            work.wait()


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th part of ``input`` to rank i, and write the part that rank i sent as the i-th part of ``output``.

    Args:
        output_split_sizes, input_split_sizes: the size of each part along dimension 0; equal parts by default.

    Raises:
        ArgumentError: the sizes are not those of dimension 0.
        RankError: another rank sends a part of another size; otherwise as :func:`all_reduce`.
    """
    if (found := member(group)) is None:
        return None
    name = "all_to_all_single"
    out, array = _tensor(name, output, found, "output"), _tensor(name, input, found, "input")
    if out.dtype != array.dtype:
        raise DTypeError(f"{name}: input and output must have one dtype, found {array.dtype} and {out.dtype}")
    outs, parts = (_split(each, sizes, found.size()) for each, sizes in ((out, output_split_sizes), (array, input_split_sizes)))
    return _done(name, found.all_to_all(out, array, outs, parts), async_op, output)


def _split(array: Any, sizes: Sequence[int] | None, ranks: int) -> list[int]:
    """The elements of each part of dimension 0."""
    rows = array.shape[0] if array.ndim else 1
    if sizes is None or not len(sizes):
        if rows % ranks:
            raise ArgumentError(f"all_to_all_single: Tensor's dim 0 ({rows}) does not divide equally across group size {ranks}")
        sizes = [rows // ranks] * ranks
    if len(sizes) != ranks:
        raise ArgumentError(f"all_to_all_single: Number of tensor splits not equal to group size: {len(sizes)}, {ranks}")
    if sum(sizes) != rows or min(sizes) < 0:
        raise ArgumentError(f"all_to_all_single: Split sizes doesn't match total dim 0 size: {list(sizes)}, {rows}")
    row = math.prod(array.shape[1:])
    return [n * row for n in sizes]


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: timedelta | None = None) -> Work | None:
    """Wait until all ranks of the group have called it."""
    if (found := member(group)) is None:
        return None
    work = found.barrier()
    if not async_op:
        work.wait(timeout)
    return work if async_op else None


# --- from one rank to another


def isend(tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> Work | None:
    """Send ``tensor`` to rank ``dst``, which must receive it with the same ``tag``. ``wait()`` of the result waits.

    Raises:
        ArgumentError: ``dst`` is this rank, or no rank of the group.
    """
    return _point("isend", tensor, dst, group, tag, group_dst)


def irecv(tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> Work | None:
    """Write into ``tensor`` what rank ``src`` sends, or any rank. ``wait()`` of the result waits.

    Raises:
        ArgumentError: ``src`` is this rank, or no rank of the group.
        RankError (in ``wait()``): a tensor of another shape or dtype was sent, or the sender failed.
    """
    work = _point("irecv", tensor, src, group, tag, group_src)
    if work is not None:
        tensor.storage.written("irecv")
    return work


def _point(name: str, tensor: Tensor, rank: int | None, group: Any, tag: int, group_rank: int | None) -> Work | None:
    if (found := member(group)) is None:
        return None
    array = _tensor(name, tensor, found)
    anybody = name == "irecv" and rank is None and group_rank is None
    other = None if anybody else inside(group, rank, name, group_rank)
    if other == found._rank:
        raise ArgumentError(
            f"{name}: Invalid {'destination' if name == 'isend' else 'source'} rank: it should not be the same as the rank of "
            "the current process."
        )
    way: Callable[..., Work] = found.send if name == "isend" else found.recv
    return way(array, other, tag)


def send(tensor: Tensor, dst: int | None = None, group: Any = None, tag: int = 0, group_dst: int | None = None) -> None:
    """As :func:`isend`, and wait."""
    work = isend(tensor, dst, group, tag, group_dst)
    if work is not None:
        work.wait()


def recv(tensor: Tensor, src: int | None = None, group: Any = None, tag: int = 0, group_src: int | None = None) -> int:
    """As :func:`irecv`, and wait.

    Returns:
        The rank, among all processes, that sent; -1 if this process does not belong to the group.
    """
    work, found = irecv(tensor, src, group, tag, group_src), member(group)
    if work is None or found is None:
        return -1
    work.wait()
    assert work.source is not None
    return found.ranks[work.source]

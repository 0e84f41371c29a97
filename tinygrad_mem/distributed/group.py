"""The interface of every process group: its ranks, and the collectives on raw arrays.

A backend is a subclass in a file of its own: ``mpi.py``, ``nccl.py``, ``fake.py``. Arrays are C-contiguous and were checked by
the caller, ``collectives.py``; no method allocates memory of a pool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, ClassVar

from ..errors import DeviceError

Array = Any  # numpy.ndarray or cupy.ndarray


class ReduceOp(StrEnum):
    """The ways to combine the numbers of several ranks."""

    SUM = "sum"
    AVG = "avg"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"


class Work:
    """A collective in progress. Its arrays may be neither read nor written before :meth:`wait` has returned.

    It keeps its arrays alive until then, so memory is freed at the same moment in each run.
    """

    source: int | None = None  # of a receive: the rank in the group that sent

    def __init__(self, *arrays: Array) -> None:
        self._arrays: tuple = arrays

    def is_completed(self) -> bool:
        """True if :meth:`wait` would not wait."""
        return True

    def wait(self, timeout: Any = None) -> bool:
        """Wait until the arrays are ready. Returns True.

        Args:
            timeout: a ``timedelta``; by default the group's.

        Raises:
            RankError: a rank failed, has ended, calls another collective, or did not come in time.
        """
        self._arrays = ()
        return True


class ProcessGroup:
    """Some of the processes that run one program.

    Attributes:
        ranks: the ranks of its members among all processes, in the order of their ranks in the group.
        timeout: the seconds that a collective may wait.
    """

    backend: ClassVar[str]
    device_type: ClassVar[str]  # of the arrays that it takes

    def __init__(self, rank: int, ranks: Sequence[int], timeout: float) -> None:
        self._rank, self.ranks, self.timeout = rank, tuple(ranks), timeout

    def rank(self) -> int:
        """The number of this process in the group, from 0 on."""
        return self._rank

    def size(self) -> int:
        """The number of members."""
        return len(self.ranks)

    def check_device(self, name: str, x: Any) -> None:
        """Refuse a tensor on a device that the group does not serve; ``name``: the function that is given it."""
        if x.device.kind != self.device_type:
            raise DeviceError(
                f"{name}: No backend type associated with device type {x.device.type}: the group {self.backend!r} serves "
                f"{self.device_type}. Move the tensor with .to({self.device_type!r})"
            )

    def choose(self, of_rank: Callable[[Any], Any]) -> Any:
        """``of_rank(rank)``, for a function that may also get an array of ranks, and gives an array of numbers then.

        Use it in place of :meth:`rank` where bytes depend on less than the rank, as on the size of a shard: a prediction then
        knows that ranks with the same answer are alike.
        """
        return of_rank(self._rank)

    def split(self, parts: Sequence[Sequence[int]]) -> ProcessGroup | None:
        """Make groups of disjoint ``parts``, lists of ranks in this group. Every member must call it with the same parts.

        Returns:
            The group that this process belongs to, or ``None``.
        """
        raise NotImplementedError

    def all_reduce(self, array: Array, op: ReduceOp) -> Work:
        """Combine the arrays of all ranks, element by element, into ``array`` of each."""
        raise NotImplementedError

    def all_gather(self, out: Array, array: Array, of: str = "") -> Work:
        """Write the arrays of all ranks into ``out``, one after the other. ``array`` may be this rank's part of ``out``.

        Args:
            of: whose numbers they are, such as a parameter's name; it must be the same on all ranks.
        """
        raise NotImplementedError

    def reduce_scatter(self, out: Array, array: Array, op: ReduceOp, of: str = "") -> Work:
        """Combine the arrays of all ranks; ``out``, memory of its own, gets this rank's part. ``of``: as in all_gather."""
        raise NotImplementedError

    def reduce(self, array: Array, root: int, op: ReduceOp) -> Work:
        """Combine the arrays of all ranks into that of rank ``root``; the others' stay as they are."""
        raise NotImplementedError

    def broadcast(self, array: Array, root: int) -> Work:
        """Write the array of rank ``root`` into that of each rank."""
        raise NotImplementedError

    def all_to_all(self, out: Array, array: Array, outs: Sequence[int], parts: Sequence[int]) -> Work:
        """Send the i-th part of ``array`` to rank i, and write the part that rank i sent as the i-th part of ``out``.

        Args:
            outs, parts: the elements of each part.
        """
        raise NotImplementedError

    def send(self, array: Array, to: int, tag: int) -> Work:
        """Send ``array`` to the rank ``to``, which must receive with that ``tag``."""
        raise NotImplementedError

    def recv(self, array: Array, source: int | None, tag: int) -> Work:
        """Write what the rank ``source`` sends, or any rank, into ``array``; :attr:`Work.source` is the rank then."""
        raise NotImplementedError

    def barrier(self) -> Work:
        """Wait for all ranks."""
        raise NotImplementedError

    def fail(self, why: str) -> None:
        """Tell the other ranks that this rank ends with an error."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: rank {self._rank} of {len(self.ranks)}>"


def described(array: Array, of: str = "") -> str:
    """Dtype and shape of an array, as in ``float32 [2, 3]``, and whose numbers they are."""
    return f"{array.dtype} {list(array.shape)}{' of ' if of else ''}{of}"


def named(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 1, 3``."""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, ranks))}"

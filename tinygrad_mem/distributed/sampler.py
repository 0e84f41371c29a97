"""The order in which each of several processes asks for its part of a dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import numpy as np

from ..data.sampler import Sampler
from .groups import get_rank, get_world_size


class DistributedSampler(Sampler[int]):
    """The share of one of several processes: every ``num_replicas``-th index, from the ``rank``-th on.

    All shares have equal length: the first indices are repeated, or with ``drop_last`` the last ones dropped. Call
    :meth:`set_epoch` before each pass; the order of ``shuffle`` depends only on ``seed + epoch``.

    Args:
        num_replicas, rank: by default those of the default process group.

    Raises:
        ValueError: there is no default process group; or the rank is not in [0, ``num_replicas``).
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        super().__init__(dataset)
        num_replicas = get_world_size() if num_replicas is None else num_replicas
        rank = get_rank() if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    @property
    def num_samples(self) -> int:
        """The number of indices that a share has."""
        count = len(self.dataset)
        return count // self.num_replicas if self.drop_last else -(-count // self.num_replicas)

    @property
    def total_size(self) -> int:
        """The number of indices that all shares have."""
        return self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        count, total = len(self.dataset), self.total_size
        seed = (self.seed + self.epoch) % (1 << 64)  # negative ones, too
        order = np.random.default_rng(seed).permutation(count) if self.shuffle else np.arange(count)
        places = np.arange(self.rank, total, self.num_replicas) % max(count, 1)
        return iter(order[places].tolist())

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next pass."""
        self.epoch = epoch

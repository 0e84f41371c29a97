"""``torch.utils.tensorboard``: the writer of the package ``tensorboardX``, where that is installed."""

from __future__ import annotations

from typing import Any

try:
    from tensorboardX import SummaryWriter  # type: ignore[import-not-found]
except ModuleNotFoundError:
    from ..errors import NotOfferedError

    class SummaryWriter:
        """Writes curves for TensorBoard: ``tensorboardX``'s, which is not installed. Raises: NotOfferedError: always."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            raise NotOfferedError("utils.tensorboard.SummaryWriter: it is tensorboardX's: pip install tensorboardX")

"""Ops that read what only another op can write: before they run alone, that other op runs."""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def made_by_forward(func: Any, args: list[Any]) -> None:
    """Replace arguments whose contents are opaque by what their forward makes of the others, in place.

    Source: ``derivatives.yaml``, ``mkldnn_rnn_layer``: oneDNN's workspace holds what only its own backward can read, and
    made-up contents end the process.
    """
    if func is aten.mkldnn_rnn_layer_backward.default:
        x, w1, w2, w3, w4, hx, cx = args[:7]
        reverse, mode, hidden, layers, biases, train, bidirectional, sizes, batch_first = args[13:22]
        with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():  # without grad mode, there is no workspace
            made = aten.mkldnn_rnn_layer.default(
                x, w1, w2, w3, w4, hx, cx, reverse, sizes, mode, hidden, layers, biases, bidirectional, batch_first, train
            )
        args[7], args[8], args[9], args[22] = made

"""``torch.ao.nn``: the layers that are offered for floating numbers."""

from ...nn import quantized as quantized

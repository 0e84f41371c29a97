"""``torch.fx.graph``, so that published files import: there are no graphs."""

from .graphs import Graph as Graph

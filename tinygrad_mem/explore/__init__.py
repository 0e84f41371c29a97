"""The explorer: a page on which a training step is changed by hand, and its predicted memory follows."""

from .server import serve as serve

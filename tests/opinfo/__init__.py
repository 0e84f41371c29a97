"""PyTorch's own tables of ops, modules and optimizers, which come with it, as a net: what stands in them runs here.

``said`` puts PyTorch's samples into our names, ``trial`` runs one beside PyTorch, ``differences`` is the one list of what
differs by choice. A failure that the list does not excuse fails the test, and so does an entry that excuses nothing.
"""

"""The cases, a file each. A file's name is its case's name; ``CASE`` is the case."""

"""Machinery that makes kernels fast: threads, tiles that fit the cache, BLAS, five convolutions. A first reader may skip it."""

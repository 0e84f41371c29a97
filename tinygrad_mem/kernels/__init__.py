"""Arithmetic into given buffers: one folder for NumPy, one for CuPy, with the same names and signatures."""

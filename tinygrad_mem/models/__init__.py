"""Networks that lessons and benchmarks use: with only their imports changed, they run in PyTorch."""

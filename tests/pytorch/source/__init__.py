"""PyTorch's own caching allocator, compiled from its source without a GPU, as the judge of our model of it."""

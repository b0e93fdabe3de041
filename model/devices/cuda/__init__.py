"""What a layer computes between its matrix products, as CUDA kernels."""

"""CUDA kernels as functions of arrays: each file has the sources of one idea and what calls them."""

"""All that is special to CUDA: layers and the decode step around kernels of our own."""

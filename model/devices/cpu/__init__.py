"""What the CPU computes outside MLX: long prompts, in NumPy, on all cores."""

"""Verifies on a user's machine that the model computes correctly: it compares every kernel with plain
operations and every way to a state with every other, and measures the speed beside mlx-lm's."""

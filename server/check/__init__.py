"""Proves on a user's machine that the model computes what it should: every kernel against plain operations,
every way to a state against every other, and what it costs beside mlx-lm."""

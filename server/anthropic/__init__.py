"""Anthropic's Messages dialect: bodies in, turns out, events back to bodies and stream events."""

"""Anthropic's Messages dialect: bodies become turns, and events become bodies and stream events."""

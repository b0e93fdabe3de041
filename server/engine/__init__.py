"""The engine thread and its algorithm: plan, read, write, remember."""

"""Decides and remembers: token ids, lengths and bytes. Knows nothing of HTTP, text or layers."""

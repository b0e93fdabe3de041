"""Computes: layers, tokens and text. Knows nothing of slots or HTTP."""

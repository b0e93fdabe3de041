"""Composes ``cache`` and ``model`` and speaks HTTP."""

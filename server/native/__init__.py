"""Endpoints of no other dialect: slots, tokens, health, metrics."""

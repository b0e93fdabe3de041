"""Endpoints that belong to no other dialect: slots, health, metrics."""

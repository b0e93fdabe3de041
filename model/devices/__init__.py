"""The devices: a folder each, and nothing of it known outside but its ``Device``, which ``model.backend``
makes."""

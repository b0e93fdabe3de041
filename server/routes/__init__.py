"""One file for each family of endpoints; each has a ``router(gateway)``."""

"""From a name to weights in memory: finding, reading, checking."""

"""What bodies of this dialect look like: requests, the items and tools in them, and replies."""

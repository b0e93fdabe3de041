"""The cache folder: conversations at rest, written behind, found again after a restart."""

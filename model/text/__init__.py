"""Text: from conversations to token ids, and from token ids to replies."""

"""All that is special to Metal."""

"""From requests to the engine and from its events to responses."""

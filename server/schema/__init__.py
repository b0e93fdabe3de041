"""The shapes of bodies: what is taken, what is sent."""

"""JSON schemas that clients send. They may be anything: no walk is exponential, and nothing is fetched."""

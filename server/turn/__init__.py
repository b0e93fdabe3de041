"""What every dialect is decoded into, and how it becomes a request to the engine. No HTTP here."""

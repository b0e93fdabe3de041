"""What is kept for clients: responses by their ids, and the key to the thoughts that clients carry."""

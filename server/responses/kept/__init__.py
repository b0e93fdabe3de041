"""What is kept for clients: responses under their ids, and the key to the thoughts that clients carry."""

"""What an operator, and a conversation's owner, is told of what happens: log, records, metrics, traces."""

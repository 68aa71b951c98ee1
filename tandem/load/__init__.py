"""A load client: request sets, the loops that send them, the servers they go to, and what the answers were worth."""

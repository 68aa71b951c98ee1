"""The pure scheduler: no sockets, clock, randomness or threads; time, ids and seeds come in as arguments."""

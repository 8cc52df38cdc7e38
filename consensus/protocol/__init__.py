"""The protocol, sans-IO: no socket, clock, thread or randomness of its own (see ``machine``)."""

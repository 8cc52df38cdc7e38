"""Sockets: datagrams, HTTP, liveness connections, and who may come in."""

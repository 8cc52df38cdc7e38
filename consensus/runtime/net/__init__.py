"""Sockets: datagrams, HTTP, liveness connections, and authentication."""

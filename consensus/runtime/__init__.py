"""The shell around the protocol: sockets, clock, seed and threads. It decides nothing (see ``protocol.machine``)."""

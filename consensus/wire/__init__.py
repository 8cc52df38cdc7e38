"""Bytes on the wire: encoding, encryption, proofs of the secret, and packets in pieces."""

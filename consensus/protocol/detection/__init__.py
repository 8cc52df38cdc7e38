"""Failure detection: probes, leases, suspicion, accusations."""

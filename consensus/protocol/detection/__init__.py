"""Who is alive: probes, leases, suspicion, accusations."""

"""What donors and joiners agree on: the manifest, the shards, the replication log, requests and refusals."""

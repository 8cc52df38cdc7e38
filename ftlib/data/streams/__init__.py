"""Streams: shards of records dealt to the members of a job, each record once an epoch."""

"""Replicas of several processes: which are whole in a view, and what shards do about a call that a view change cuts."""

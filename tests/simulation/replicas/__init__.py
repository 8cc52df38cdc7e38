"""Replicas of several processes, played in random histories: members, groups a shard, view changes, deaths, restarts."""

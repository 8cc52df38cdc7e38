"""Which list all act on: proposing, voting, installing."""

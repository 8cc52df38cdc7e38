"""Agreement on the next view: proposing, voting, installing."""

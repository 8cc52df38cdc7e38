"""The donor's side: a member that holds the state gives it while it trains."""

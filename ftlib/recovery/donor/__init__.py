"""The side that holds the state and gives it while it trains."""

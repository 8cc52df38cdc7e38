"""One member's shell around the protocol: a clock, a driver, and what they need."""

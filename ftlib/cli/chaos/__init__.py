"""``ftlib chaos``: faults at random moments in a running job, and what became of them."""

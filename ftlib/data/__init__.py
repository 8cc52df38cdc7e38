"""Which member takes which samples: the replicated state of the data, and the samplers that draw from it."""

"""Who takes which samples: the positions of an epoch, their deal among the drawers, and the state that all compute. Pure."""

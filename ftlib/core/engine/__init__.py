"""How a call is carried out: wait for a group, decide, do it, and handle its failure."""

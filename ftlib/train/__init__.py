"""Training in data parallel: wrappers that average gradients while backward runs, and optimizers that know of steps."""

"""A worker's lifetimes: from looking for the job to leaving it, and rejoining."""

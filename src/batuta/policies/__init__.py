"""How many GPUs each job gets: one file per policy."""

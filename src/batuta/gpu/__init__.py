"""What runs on a node: the GPUs that are there."""

"""What runs on a node with GPUs: profiler, health, shares, device plugin, virtual GPUs."""

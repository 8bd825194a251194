"""The health of GPUs on a node: where findings come from, the rules, the watch of local mode, and repair."""

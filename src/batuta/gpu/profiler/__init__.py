"""Measure how the GPUs of a node are used, and by which jobs."""

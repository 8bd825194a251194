"""Workloads from files: one module per format, the recogniser, and a generator."""

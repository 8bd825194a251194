"""Workloads from trace files, and from a generator."""

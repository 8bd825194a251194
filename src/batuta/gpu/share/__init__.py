"""Sharing a GPU: limits on the memory and compute of a container, and how they are enforced."""

"""Sharing a GPU: limits on memory and compute of a container, held to by the library `native/share`."""

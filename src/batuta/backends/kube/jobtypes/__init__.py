"""Job types: which objects of the cluster a UnifiedJob becomes at a given size, and what they say of it."""

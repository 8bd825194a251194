"""A clock that jumps and models in place of machines."""

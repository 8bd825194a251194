"""The one loop and its ports."""

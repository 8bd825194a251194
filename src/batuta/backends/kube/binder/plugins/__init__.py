"""The binder's plugins."""

"""The considerations of the binder, one file each."""

"""The domain, pure: no clock, no file, no socket, no unseeded randomness."""

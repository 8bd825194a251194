"""Forecasts: the World is forked into the simulator, which runs it ahead from its present state."""

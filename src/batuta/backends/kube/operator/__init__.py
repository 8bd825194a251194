"""The operator: what the API server shows becomes events, commands become writes."""

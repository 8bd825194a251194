"""The operator: changes in the API server become events for the engine, its commands become writes."""

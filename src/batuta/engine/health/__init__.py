"""Health and the engine: what is known of it, and what the World has to be told."""

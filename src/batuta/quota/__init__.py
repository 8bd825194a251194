"""Who may use how much."""

"""Where findings about the health of a node come from, and the rules to judge them by."""

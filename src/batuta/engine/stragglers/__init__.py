"""Jobs that some of their ranks hold up: found, told, and moved or restarted where that pays."""

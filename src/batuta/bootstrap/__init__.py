"""The only package that wires others together: options of a command become servers, operators and agents."""

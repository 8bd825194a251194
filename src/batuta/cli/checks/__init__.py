"""What `batuta doctor` looks at."""

"""What `batuta doctor` looks at in a cluster."""

"""Real processes on this machine: replicas that outlive the server, their logs and their addresses."""

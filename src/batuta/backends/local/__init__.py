"""Local mode: replicas as processes that outlive the server, their files, logs and addresses."""

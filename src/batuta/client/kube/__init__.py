"""The client of a Kubernetes cluster: reads and writes UnifiedJobs with the rights of the user."""

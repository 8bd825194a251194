"""A Kubernetes cluster as the verbs see one: UnifiedJobs read and written with the user's own rights."""

"""Batuta on Kubernetes: UnifiedJobs, the operator that sizes them, the binder that places their pods."""

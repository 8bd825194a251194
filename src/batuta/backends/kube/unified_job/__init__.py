"""UnifiedJob, the kind of job that people write for Batuta on Kubernetes: model, CRD, meaning."""

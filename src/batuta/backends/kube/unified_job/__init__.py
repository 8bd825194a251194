"""UnifiedJob, the custom resource of Batuta's jobs: model, CRD, and conversion to and from tasks and jobs."""

"""Trial runs on Kubernetes: a TrialRun runs a UnifiedJob for a short while at each of several sizes."""

"""Trial runs on a cluster: a TrialRun has a UnifiedJob run for a short while at each of several sizes."""

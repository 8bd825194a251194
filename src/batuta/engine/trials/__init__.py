"""Trial runs: a job runs for a short while at several sizes, so that it is queued with what that showed."""

"""Whose a process is: from its control groups to a container, a pod, a job."""

"""Queues and quota on Kubernetes: Kueue's objects as the source of quota, and jobs as its Workloads."""

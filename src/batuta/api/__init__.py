"""The HTTP face of a running engine: jobs, nodes, queues, policy, events, logs, metrics, the dashboard."""

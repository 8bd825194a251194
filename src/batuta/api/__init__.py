"""The HTTP API server of a running engine: jobs, nodes, queues, policy, events, logs, metrics, dashboard."""

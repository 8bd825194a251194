"""Node health on Kubernetes: agents report, the state machine decides, the operator taints and evicts."""

"""Shares of GPUs for the containers of a Kubernetes node, as the kubelet's device plugins give them out."""

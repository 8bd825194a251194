"""The device plugin that allocates shares of GPUs to containers of a Kubernetes node."""

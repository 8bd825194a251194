"""Reports: comparisons of simulated runs, and the GPU usage of a cluster."""

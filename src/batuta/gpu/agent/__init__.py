"""What `batuta agent` does with the profiler's figures: annotations, metrics, a loop."""

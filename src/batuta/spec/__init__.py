"""What users write, turned into jobs and clusters; errors with place and fix."""

"""What training scripts say in the logs of their pods: read there, understood, and answered."""

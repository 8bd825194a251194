"""Progress reports that training scripts write to the logs of their pods, and checkpoint requests to them."""

"""What the GPUs of a node do, and for whom: samples, figures, behaviour."""

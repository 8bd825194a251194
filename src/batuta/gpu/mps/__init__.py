"""Shares that NVIDIA's own means hold: the Multi-Process Service, and the kernel's dmem controller."""

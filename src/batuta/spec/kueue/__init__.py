"""Kueue's objects as YAML or plain values, to and from `batuta.core.quota`."""

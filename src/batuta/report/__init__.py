"""Comparison reports with plots."""

"""Metric names and logging."""

"""Placement: which profile, which nodes, which GPUs, and why not the others. Pure."""

"""Placement: which profile, which nodes, which GPUs, and why not the others. Pure."""

from roost.placement.plan import plan

__all__ = ["plan"]

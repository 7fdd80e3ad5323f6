"""Roost: a self-hosted control plane that serves language models from your own machines."""

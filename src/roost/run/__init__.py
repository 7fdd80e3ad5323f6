"""Composition: up, server, agent, gateway, demo; imported by name, so that ctl stays light."""

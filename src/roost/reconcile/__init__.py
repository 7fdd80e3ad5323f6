"""Pure state machines: desired and observed in, actions with their because out."""

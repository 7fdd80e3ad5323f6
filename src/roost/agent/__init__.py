"""What runs on a node: facts, supervised engines, reports."""

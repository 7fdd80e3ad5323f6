"""Management and agent HTTP: the only door to the server."""

"""The operator's commands; imports neither the server nor SQL."""

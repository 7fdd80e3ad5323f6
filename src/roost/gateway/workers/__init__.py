"""A gateway of several processes: one that follows the server and watches, and those that serve."""

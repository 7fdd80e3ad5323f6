"""What this machine is: thin readers under a root path around pure parsers, partial facts instead
of errors.
"""

from roost.agent.facts.read import Asked, read

__all__ = ["Asked", "read"]

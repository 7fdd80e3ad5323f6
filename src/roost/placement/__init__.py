"""Placement: which profile, which nodes, which GPUs, and why not the others. Pure.

`plan` answers for a whole catalog at once. A caller that keeps a fleet over many questions has an
`Index`: events go in, `index.view` is the fleet as of now, and `decide(Ask(model, number), view)`
answers for one replica; what it is to hold is in `Placed.allocations`.
"""

from roost.placement.decide import Ask, Placed, Unplaceable, decide
from roost.placement.index import Index
from roost.placement.plan import Kept, plan
from roost.placement.view import View

__all__ = ["Ask", "Index", "Kept", "Placed", "Unplaceable", "View", "decide", "plan"]

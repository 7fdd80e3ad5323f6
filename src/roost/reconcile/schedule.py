"""What the scheduler does next, from what is wanted and what runs: actions that say why. Pure."""

from dataclasses import dataclass

from roost.domain.fleet import Fleet
from roost.domain.replica import PlacementId
from roost.reconcile.actions import Action, Adopt, Place
from roost.reconcile.board import Board, Decided, Plan
from roost.reconcile.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The actions, and the decision of each wanted replica that has no place."""

    actions: tuple[Action, ...]
    waiting: tuple[Decided, ...] = ()


def step(world: World, plan: Plan) -> Step:
    """The actions that bring what runs one step nearer to what is wanted; none when it is there."""
    board = _trimmed(world)
    board.adopt()
    waiting: tuple[Decided, ...] = ()
    # What was adopted is a replica in the next step, which follows at once.
    if world.settled and not any(isinstance(action, Adopt) for action in board.actions):
        waiting = board.place(plan)
        if not any(isinstance(action, Place) for action in board.actions):
            board.replace_one(plan)
    board.regroup()
    return Step(actions=tuple(board.actions), waiting=waiting)


def fleet_of(world: World) -> Fleet:
    """The fleet as placement sees it."""
    return Board(world).fleet()


def decided(world: World, plan: Plan) -> tuple[Decided, ...]:
    """What placement says of every replica that the next step will want, in catalog order.

    Nothing is done. Of too many, those that the step drains are not among them.
    """
    return _trimmed(world).decided(plan)


def adoptable(world: World) -> frozenset[PlacementId]:
    """The orphans that the next step adopts: they run as a replica that is wanted and missing."""
    board = _trimmed(world)
    board.adopt()
    return frozenset(
        action.orphan.placement for action in board.actions if isinstance(action, Adopt)
    )


def _trimmed(world: World) -> Board:
    """Without what is gone, lost, or too many."""
    board = Board(world)
    board.release_and_lose()
    board.settle_returns()
    for name in sorted(board.by_model()):
        board.trim(name)
    return board

"""All the engines of this node: those wanted, those to stop, and those nobody has spoken of."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog

from roost.agent.supervise import process
from roost.agent.supervise.kept import Kept
from roost.agent.supervise.shard import Shard
from roost.agent.supervise.tools import Tools
from roost.domain.replica import Desired, ObservedShard, ShardSpec

log = structlog.get_logger()

Key = tuple[str, int]
"""(placement, rank): at most one engine each, ever."""


class Engines:
    """Obeys desired states; stops nothing that isn't in one's `stop`."""

    def __init__(self, tools: Tools) -> None:
        self.problems: tuple[str, ...] = ()
        """What was found at the start and could not be taken over."""
        self._tools = tools
        self._shards: dict[Key, Shard] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._stopped: dict[Key, ObservedShard] = {}
        """Gone by a tombstone that still stands: reported until it doesn't."""

    def restore(self, desired: Desired | None) -> None:
        """Take over what earlier agent processes started, by their files and by the marks on
        processes.
        """
        specs = () if desired is None else desired.run
        wanted: dict[Key, ShardSpec] = {(s.placement, s.rank): s for s in specs}
        marked = process.find(self._tools.agent)
        problems: list[str] = []
        for kept in self._tools.shelf.read():
            if isinstance(kept, str):
                problems.append(kept)
                continue
            key: Key = (kept.spec.placement, kept.spec.rank)
            shard = Shard(kept.spec, self._tools)
            shard.adopt(kept, marked.pop(key, None))
            if key not in wanted and not shard.present:
                # Nobody wants it and it is gone: nothing to supervise.
                self._tools.shelf.remove(*key)
                continue
            self._add(key, shard)
        for key, pid in marked.items():
            if key in wanted:
                spec = _begun(wanted[key])
                shard = Shard(spec, self._tools)
                shard.adopt(Kept(spec=spec, up=True, starts=1), pid)
                self._add(key, shard)
                continue
            problems.append(
                f"process {pid} is an engine of placement {key[0]} of which there is no record; "
                "it is left running"
            )
        self.problems = tuple(problems)
        if desired is not None:
            self.obey(desired)

    def obey(self, desired: Desired) -> None:
        """Run what is in `run`, stop what is in `stop`, and leave everything else as it is."""
        stop = set(desired.stop)
        run: dict[Key, ShardSpec] = {
            (s.placement, s.rank): s for s in desired.run if s.placement not in stop
        }
        for key, spec in run.items():
            if key in self._shards:
                self._shards[key].want(spec)
            else:
                self._add(key, Shard(spec, self._tools))
        for key, shard in self._shards.items():
            shard.known = key in run or key[0] in stop
            if key[0] in stop:
                shard.stop()
        self._stopped = {k: shard for k, shard in self._stopped.items() if k[0] in stop}
        self._tools.changed()

    def observed(self) -> tuple[ObservedShard, ...]:
        """Every shard as it is now, those stopped by a standing tombstone among them."""
        live = {key: shard.observed() for key, shard in self._shards.items()}
        return tuple((self._stopped | live)[key] for key in sorted(self._stopped | live))

    def shard(self, placement: str, rank: int) -> Shard | None:
        """The supervisor of one shard."""
        return self._shards.get((placement, rank))

    def ports(self) -> frozenset[int]:
        """Ports that this node's engines hold or are to hold."""
        return frozenset(
            port
            for shard in self._shards.values()
            for port in (shard.spec.port, shard.running.port)
        )

    def on_cards(self) -> tuple[frozenset[int], frozenset[str]]:
        """The first process of each engine that runs, and the uuids of the cards given to those."""
        pids: set[int] = set()
        cards: set[str] = set()
        for shard in self._shards.values():
            pid = shard.observed().pid
            if pid is not None:
                pids.add(pid)
                cards.update(shard.running.gpu_uuids)
        return frozenset(pids), frozenset(cards)

    async def first_look(self, *, within_s: float) -> None:
        """Until every shard has been looked at once: what was ready is reported as ready, not as
        starting.
        """
        looks = [asyncio.ensure_future(shard.looked.wait()) for shard in self._shards.values()]
        if looks:
            _, late = await asyncio.wait(looks, timeout=within_s)
            for look in late:
                look.cancel()

    async def stop(self, *, hurry: Callable[[], bool]) -> None:
        """Drain and stop all engines: the operator stops a whole `roost up`."""
        while self._shards:
            for shard in self._shards.values():
                shard.stop(hurry=hurry())
            # One whose supervision failed is resumed in a while.
            going = [task for task in self._tasks.values() if not task.done()]
            await (asyncio.wait(going, timeout=0.5) if going else asyncio.sleep(0.5))

    async def let_go(self) -> None:
        """End the supervision; engines stay."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, key: Key, shard: Shard) -> None:
        self._shards[key] = shard
        task = asyncio.create_task(shard.run(), name=f"shard {key[0]} {key[1]}")
        self._tasks[key] = task
        task.add_done_callback(lambda done: self._over(key, done))

    def _over(self, key: Key, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        if (cause := task.exception()) is not None:
            # A bug in the supervision of one engine: said, and the engine and the others stay
            # supervised.
            log.error("shard.supervision_failed", placement=key[0], exc_info=cause)
            asyncio.get_running_loop().call_later(5, self._resume, key)
            return
        shard = self._shards.pop(key)
        self._tasks.pop(key, None)
        self._stopped[key] = replace(shard.observed(), pid=None, load=None)
        self._tools.changed()

    def _resume(self, key: Key) -> None:
        if key in self._shards:
            self._add(key, self._shards[key])


def _begun(spec: ShardSpec) -> ShardSpec:
    """What an engine that is known by its marks alone was started with, as far as can be told.

    Nothing of a start that is held has begun: it is of the one before.
    """
    return replace(spec, generation=spec.generation - 1, hold=False) if spec.hold else spec

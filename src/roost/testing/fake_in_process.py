"""The engines of a made-up node, all in this process: what obeys desired states, and faults."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from roost.agent.supervise.tools import Tools
from roost.agent.tasks import cancel
from roost.domain.replica import Desired, ObservedShard, ShardSpec
from roost.testing.fake_shard import FakeShard
from roost.testing.faults import CRASHED, Kind

Key = tuple[str, int]


class InProcess:
    """Obeys desired states as a real agent's engines do; stops nothing that isn't in `stop`."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._shards: dict[Key, FakeShard] = {}
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._loops: set[str] = set()
        """Replicas whose engines end soon after each start, by whatever placement."""
        self._stopped: dict[Key, ObservedShard] = {}
        """Gone by a tombstone that still stands: reported until it doesn't."""

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
                self._add(key, FakeShard(spec, self._tools))
        for key, shard in self._shards.items():
            shard.known = key in run or key[0] in stop
            if key[0] in stop:
                shard.stop()
        self._stopped = {key: shard for key, shard in self._stopped.items() if key[0] in stop}
        self._tools.changed()

    def observed(self) -> tuple[ObservedShard, ...]:
        """Every shard as it is now, those stopped by a standing tombstone among them."""
        live: dict[Key, ObservedShard] = {
            key: shard.observed() for key, shard in self._shards.items()
        }
        return tuple((self._stopped | live)[key] for key in sorted(self._stopped | live))

    def shard(self, placement: str, rank: int) -> FakeShard | None:
        """The supervisor of one shard."""
        return self._shards.get((placement, rank))

    def live(self) -> tuple[ShardSpec, ...]:
        """What the engines that run were started with."""
        return tuple(shard.running for shard in self._shards.values() if shard.lives)

    # -- faults ----------------------------------------------------------------------------------

    def replicas(self) -> frozenset[str]:
        """Whose engines run here, or are to."""
        return frozenset(str(shard.spec.replica) for shard in self._shards.values())

    def fail(self, replica: str, kind: Kind) -> None:
        """Let its engine crash once, crash at every start, or hang."""
        if kind is Kind.CRASH_LOOP:
            self._loops.add(replica)
        for shard in self._of(replica):
            if kind is Kind.CRASH:
                shard.crash(CRASHED)
            elif kind is Kind.CRASH_LOOP:
                shard.loop()
            else:
                shard.hang()

    def heal(self, replica: str) -> None:
        """Its engine goes on, and crashes no more."""
        self._loops.discard(replica)
        for shard in self._of(replica):
            shard.heal()

    def hangs(self, replica: str) -> bool:
        """Its engine still hangs: it has not been started again."""
        return any(shard.hangs for shard in self._of(replica))

    def on_card(self, uuid: str, last_words: str) -> None:
        """The engine on this card ends."""
        for shard in self._shards.values():
            if uuid in shard.running.gpu_uuids:
                shard.crash(last_words)

    def _of(self, replica: str) -> Sequence[FakeShard]:
        return [shard for shard in self._shards.values() if shard.spec.replica == replica]

    # -- power -----------------------------------------------------------------------------------

    async def boot(self, desired: Desired | None, boot_id: str | None) -> None:
        """Start what ran when power was lost, and obey what is remembered."""
        self._tools = replace(self._tools, boot_id=boot_id)
        for key, shard in self._shards.items():
            shard.boot()
            self._supervise(key, shard)
        if desired is not None:
            self.obey(desired)

    async def lose_power(self) -> None:
        """All engines are gone at once, and nobody looks after them."""
        await cancel(list(self._tasks.values()))
        self._tasks.clear()
        for shard in self._shards.values():
            shard.lose_power()

    async def close(self) -> None:
        """The fleet ends, and its engines with it."""
        await self.lose_power()

    def _add(self, key: Key, shard: FakeShard) -> None:
        shard.loops = shard.spec.replica in self._loops
        self._shards[key] = shard
        self._supervise(key, shard)

    def _supervise(self, key: Key, shard: FakeShard) -> None:
        task = self._tasks[key] = asyncio.create_task(shard.run(), name=f"shard {key}")
        task.add_done_callback(lambda done: self._over(key, done))

    def _over(self, key: Key, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        task.result()
        shard = self._shards.pop(key)
        del self._tasks[key]
        self._stopped[key] = replace(shard.observed(), load=None)
        self._tools.changed()

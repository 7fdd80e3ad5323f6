"""The engines of a made-up node as real processes: a real agent's supervision of fake engines.

They outlive a fleet that is killed, and the next one on its directory takes them over.
"""

import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace

from roost.agent.supervise.engines import Engines
from roost.agent.supervise.process import kill
from roost.agent.supervise.shard import Shard
from roost.agent.supervise.tools import Tools
from roost.domain.profile import Engine
from roost.domain.replica import Desired, ObservedShard, ShardSpec
from roost.errors import Unavailable
from roost.testing.fake_shard import knobs_of_a_loop
from roost.testing.faults import Kind


class Places:
    """How many processes a made-up fleet may have, over all its nodes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._counts: list[Callable[[], int]] = []

    def counted(self, count: Callable[[], int]) -> None:
        """One node's engines that run, whenever it is asked."""
        self._counts.append(count)

    def take(self) -> None:
        """One more is to be started; raises `Unavailable` beyond the limit."""
        if sum(count() for count in self._counts) >= self._most:
            raise Unavailable(
                f"this made-up fleet runs {self._most} engine processes, which is its limit: "
                "more are for roost fleet run --most-processes, any number without "
                "--engines processes"
            )


class AsProcesses:
    """A real agent's `Engines`, which can be told to fail."""

    def __init__(self, tools: Tools, places: Places) -> None:
        def program(engine: Engine) -> tuple[str, ...]:
            places.take()
            return tools.program(engine)

        self._tools = replace(tools, program=program)
        self._engines = Engines(self._tools)
        self._desired: Desired | None = None
        self._loops: set[str] = set()
        self._stood: set[int] = set()
        """Processes that were told to stand still."""
        places.counted(lambda: len(self._pids()))

    def obey(self, desired: Desired) -> None:
        """As a real agent does; an engine that is to crash is started with that."""
        self._desired = desired
        self._engines.obey(
            replace(desired, run=tuple(self._with_fault(spec) for spec in desired.run))
        )

    def _with_fault(self, spec: ShardSpec) -> ShardSpec:
        if spec.replica not in self._loops:
            return spec
        args = (*spec.profile.args, *knobs_of_a_loop())
        return replace(spec, profile=replace(spec.profile, args=args))

    def observed(self) -> tuple[ObservedShard, ...]:
        """Every shard as it is now."""
        return self._engines.observed()

    def shard(self, placement: str, rank: int) -> Shard | None:
        """The supervisor of one shard."""
        return self._engines.shard(placement, rank)

    def live(self) -> tuple[ShardSpec, ...]:
        """What the engines that run were started with."""
        found = ((seen.pid, self.shard(seen.placement, seen.rank)) for seen in self.observed())
        return tuple(shard.running for pid, shard in found if pid is not None and shard is not None)

    # -- faults ----------------------------------------------------------------------------------

    def replicas(self) -> frozenset[str]:
        """Whose engines run here, or are to."""
        return frozenset(
            str(shard.replica) for shard in self.observed() if shard.state != "stopped"
        )

    def fail(self, replica: str, kind: Kind) -> None:
        """Let its engine be killed once, end at every start, or stand still."""
        if kind is Kind.HANG:
            self._signal(replica, signal.SIGSTOP)
            self._stood.update(self._pids(replica))
            return
        if kind is Kind.CRASH_LOOP:
            self._loops.add(replica)
            self._again()
        self._signal(replica, signal.SIGKILL)

    def heal(self, replica: str) -> None:
        """Its engine goes on, and ends no more."""
        self._loops.discard(replica)
        self._again()
        self._stood.difference_update(self._pids(replica))
        self._signal(replica, signal.SIGCONT)

    def hangs(self, replica: str) -> bool:
        """Its engine still stands: it has not been started again."""
        return bool(self._stood & set(self._pids(replica)))

    def on_card(self, uuid: str, last_words: str) -> None:
        """The engine on this card ends."""
        del last_words  # a process that is killed says nothing
        for seen in self.observed():
            shard = self.shard(seen.placement, seen.rank)
            if shard is not None and uuid in shard.running.gpu_uuids:
                self._signal(seen.replica, signal.SIGKILL)

    def _again(self) -> None:
        if self._desired is not None:
            self.obey(self._desired)

    def _pids(self, replica: str | None = None) -> list[int]:
        return [
            shard.pid
            for shard in self.observed()
            if shard.pid is not None and replica in {None, shard.replica}
        ]

    def _signal(self, replica: str, number: signal.Signals) -> None:
        for pid in self._pids(replica):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    # -- power -----------------------------------------------------------------------------------

    async def boot(self, desired: Desired | None, boot_id: str | None) -> None:
        """A new agent finds what the one before it left."""
        self._tools = replace(self._tools, boot_id=boot_id)
        self._engines = Engines(self._tools)
        self._desired = desired
        self._engines.restore(
            None
            if desired is None
            else replace(desired, run=tuple(self._with_fault(spec) for spec in desired.run))
        )

    async def lose_power(self) -> None:
        """All engines are killed, and nobody looks after them."""
        await self._engines.let_go()
        for seen in self.observed():
            shard = self.shard(seen.placement, seen.rank)
            if shard is not None:
                kill(shard.mark, None)

    async def close(self) -> None:
        """The fleet ends, and its engines with it: nobody else would stop them."""
        await self._engines.stop(hurry=lambda: True)

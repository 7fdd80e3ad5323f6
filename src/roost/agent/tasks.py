"""Waits that end in time, tasks that are ended, and work in a thread that may hang."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def first(waiting: Coroutine[Any, Any, object], seconds: float) -> None:
    """Until that is over, or the time is."""
    task = asyncio.ensure_future(waiting)
    await asyncio.wait({task}, timeout=max(0.0, seconds))
    await cancel([task])


async def cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """End them, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """Like an executor's, and no reason to wait at the end: a thread that hangs ends with the
    process.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, cause: BaseException | None) -> None:
        if future.cancelled():
            return
        if cause is not None:
            future.set_exception(cause)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # without a cause there is a result

    def run() -> None:
        result, cause = None, None
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - the future raises it
            cause = error
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, result, cause)

    threading.Thread(target=run, daemon=True, name="facts").start()
    return future

"""The one place where tests wait by looking again and again: for what has no event to wait on, here or in a process of
its own. Whatever has an event (an observer's, a queue, a line of output) is waited for by that instead."""

import asyncio
import inspect
import sys
import time
from collections.abc import Callable

PATIENCE = 60.0
STEP = 0.005
"""Seconds between two looks: short beside what is waited for, long enough to leave the processor to it."""


async def until(true: Callable[[], object], seconds: float = PATIENCE, what: str = "") -> None:
    """Look until `true()` is true, or what it returns when awaited. Fails with `what`, or the line that waits."""
    line = what or _line_of_caller()
    deadline = time.monotonic() + seconds
    while True:
        found = true()
        if inspect.isawaitable(found):
            async with asyncio.timeout(max(0.0, deadline - time.monotonic()) + STEP):
                found = await found
        if found:
            return
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:g} seconds in vain for: {line}")
        await asyncio.sleep(STEP)


def until_so(true: Callable[[], object], seconds: float = PATIENCE, what: str = "") -> None:
    """`until` where no loop runs."""
    line = what or _line_of_caller()
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= deadline:
            raise AssertionError(f"waited {seconds:g} seconds in vain for: {line}")
        time.sleep(STEP)


def _line_of_caller() -> str:
    frame = inspect.getframeinfo(sys._getframe(2))
    return f"{frame.filename}:{frame.lineno}: {''.join(frame.code_context or []).strip()}"

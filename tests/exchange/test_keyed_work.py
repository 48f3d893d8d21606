"""Work for many keys: one key's in order, different keys side by side."""

import asyncio

from exchange.keyed_work import KeyedWork
from storage import StorageError
from tests.waiting import until


async def test_a_key_waits_for_itself_only_and_for_a_store_that_fails() -> None:
    done: list[str] = []
    stuck = asyncio.Event()
    failures = [StorageError("full"), None]
    told: list[str] = []

    async def run(key: str) -> bool:
        if key == "slow":
            await stuck.wait()
        if key == "failing" and (error := failures.pop(0)) is not None:
            raise error
        done.append(key)
        return True

    work = KeyedWork(run, told.append, first_wait=0.001)
    for key in ("slow", "quick", "failing"):
        work.wake(key)
    await until(lambda: done == ["quick", "failing"])
    assert len(told) == 1
    work.wake("slow")
    stuck.set()
    await until(lambda: work.under_way == 0)
    assert done[2:] in (["slow"], ["slow", "slow"])
    await work.stop()
    work.wake("quick")
    assert work.under_way == 0

"""A healthy reader beside a slow, a refusing and a crashing one: how long it waits, in turns of the event loop.

Turns are a clock that a busy machine does not slow down: whoever had to wait for another's gate, or behind another's
work, would be reached in a later one.
"""

import asyncio
from pathlib import Path

import pytest

from exchange.exchange import ExchangeConfig
from exchange.keyed_work import AT_ONCE
from exchange.model import Interest, SessionKey
from exchange.ports import PassOverError
from identifiers import DEFAULT_NAMING
from tests.exchange.test_exchange import Notes, bench

ITEMS = AT_ONCE + 16
"""More than one reader may have under way: the slow one's places are all taken."""
ROUNDS = 2
CONFIG = ExchangeConfig(first_wait=0.001, longest_wait=0.01, max_interests=2 * ITEMS)
BOUND = 1.2
MOST = 1_000
"""Turns: many times what it takes."""


class Slow(Notes):
    """Is still at the first entry of each item when the test ends."""

    def __init__(self) -> None:
        super().__init__("slow")
        self.gate.clear()


class Refusing(Notes):
    def __init__(self) -> None:
        super().__init__("refusing")
        self.trouble = PassOverError("not for me")


class Crashing(Notes):
    def __init__(self) -> None:
        super().__init__("crashing")
        self.trouble = ZeroDivisionError("a fault of its own")


async def waits(folder: Path, *others: Notes) -> list[int]:
    """Turns from the end of each `publish` to the healthy reader's `deliver`."""
    healthy = Notes("healthy")
    items = [DEFAULT_NAMING.of_user(f"u{number}@a.example") for number in range(ITEMS)]
    found: list[int] = []
    async with bench(folder, *others, healthy, config=CONFIG) as here:
        for item in items:
            for reader in (*others, healthy):
                await here.exchange.subscribe(SessionKey(reader.name, "x"), Interest(str(item), item))
        for number in range(ROUNDS):
            for item in items:
                await here.say(b"%d" % number, item, "elsewhere")
                turns = 0
                while len(healthy.taken.get("x", ())) == len(found):
                    turns += 1
                    assert turns < MOST, "the healthy one waits"
                    await asyncio.sleep(0)
                found.append(turns)
        counters = here.exchange.counters
        assert not any(reader.taken for reader in others)
        assert ("refusing" in {reader.name for reader in others}) == bool(counters.refused)
        assert ("crashing" in {reader.name for reader in others}) == bool(counters.retried)
    return sorted(found)


def p99(sample: list[int]) -> int:
    return sample[len(sample) * 99 // 100]


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    found = [tmp_path / name for name in ("alone", "beside")]
    for folder in found:
        folder.mkdir()
    return found


@pytest.mark.parametrize("kinds", [(Slow,), (Refusing,), (Crashing,), (Slow, Refusing, Crashing)])
async def test_the_healthy_one_waits_for_nobody(folders: list[Path], kinds: tuple[type[Notes], ...]) -> None:
    alone = await waits(folders[0])
    beside = await waits(folders[1], *(kind() for kind in kinds))
    assert p99(beside) <= BOUND * p99(alone)

"""Runs attacks one after the other, each in a world of its own, and judges what an innocent user felt."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf.bench.family import Ticker
from trials.attack.stranger import Attack
from trials.attack.world import AttackWorld, WorldError

SAMPLE_EVERY = 0.25
FACTOR = 2.0
FLOOR = 1.0
"""Bar: the innocent's p99 is at most `FACTOR` times the quiet one, or `FLOOR` seconds, whichever is larger."""
AFTERMATH = 3.0
"""Seconds after the stranger has gone that still count: what they left behind may hold others up."""
PATIENCE = 60.0


@dataclass(frozen=True, slots=True)
class AttackTimes:
    quiet: float = 10.0
    attack: float = 20.0
    outstanding: float = 30.0
    """What takes longer to arrive, after all has ended, is lost."""


QUICK = AttackTimes(4.0, 7.0)


@dataclass
class FeltWay:
    """What one innocent way of publications felt."""

    quiet_p99: float
    attack_p99: float
    published: int
    lost: int
    refused: int

    @property
    def allowed(self) -> float:
        return max(FACTOR * self.quiet_p99, FLOOR)


@dataclass
class AttackResult:
    """One attack and what came of it."""

    name: str
    victim: str
    felt: dict[str, FeltWay] = field(default_factory=dict)
    memory_growth: int = 0
    memory_bound: int = 0
    disk_growth: int = 0
    disk_bound: int = 0
    rows: int | None = None
    rows_bound: int = 0
    forged: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.failures

    def judge(self, breaches: Sequence[str]) -> None:
        self.failures += breaches
        if not any(self.counts.values()):
            self.failures.append("the attack did nothing")
        for way, felt in self.felt.items():
            if felt.attack_p99 > felt.allowed:
                self.failures.append(f"{way}: p99 {felt.attack_p99:.2f} s, allowed {felt.allowed:.2f}")
            if felt.lost:
                self.failures.append(f"{way}: {felt.lost} publications did not arrive at all")
            if not felt.published:
                self.failures.append(f"{way}: nothing was published meanwhile")
        if self.forged:
            self.failures.append(f"{self.forged} forged publications were believed")
        for what, growth, bound in (
            ("memory", self.memory_growth, self.memory_bound),
            ("disk", self.disk_growth, self.disk_bound),
        ):
            if growth > bound:
                self.failures.append(f"{what} grew by {growth / 2**20:.0f} MiB, allowed {bound / 2**20:.0f}")
        if self.rows is not None and self.rows > self.rows_bound:
            self.failures.append(f"{self.rows:,} subscriptions and requests are stored, allowed {self.rows_bound:,}")


class Usage:
    """The most memory, disk and rows that the attacked ones have."""

    def __init__(self, world: AttackWorld, *, rows: bool = False) -> None:
        self._world = world
        self._counts_rows = rows
        self.rows: int | None = None
        self.memory = 0
        self.disk = 0

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(SAMPLE_EVERY)

    def look(self) -> None:
        self.memory = max(self.memory, self._world.memory)
        self.disk = max(self.disk, self._world.disk)
        if self._counts_rows:
            self.rows = max(self.rows or 0, self._world.rows)


async def run_attack(attack: Attack, times: AttackTimes, tick: Callable[[float], None]) -> AttackResult:
    result = AttackResult(attack.name, attack.victim.value, memory_bound=attack.memory, disk_bound=attack.disk)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="psph-attack-") as folder:
        try:
            async with AttackWorld(Path(folder), attack) as world:
                breaches = await _inside(world, attack, times, result)
            result.judge(breaches)
        except WorldError as error:
            result.failures.append(str(error))
    result.seconds = time.monotonic() - began
    tick(1)
    return result


async def _inside(world: AttackWorld, attack: Attack, times: AttackTimes, result: AttackResult) -> list[str]:
    await world.phase("quiet")
    before = Usage(world)
    watching = asyncio.create_task(before.watch())
    await asyncio.sleep(times.quiet)
    watching.cancel()
    during = Usage(world, rows=attack.rows is not None)
    watching = asyncio.create_task(during.watch())
    await world.phase("attack")
    try:
        done = await world.attack(attack.name, times.attack, times.attack + PATIENCE)
        await asyncio.sleep(AFTERMATH)
        ways = await world.felt(times.outstanding)
        during.look()
    finally:
        watching.cancel()
    result.memory_growth = max(0, during.memory - before.memory)
    result.disk_growth = max(0, during.disk - before.disk)
    result.rows, result.rows_bound = during.rows, attack.rows or 0
    result.counts = done["counts"]
    for name, way in ways.items():
        result.felt[name] = felt_way(way)
        result.forged += way["forged"]
    dead = [f"{process.name} ended: {process.complaints}" for process in world.victims if not process.alive]
    inner = [f"the inside was reached: {line}" for line in await world.reached_inside()]
    return [*done["breaches"], *dead, *inner]


def felt_way(way: dict[str, Any]) -> FeltWay:
    quiet, attacked = way["quiet"], way["attack"]
    return FeltWay(quiet["p99"], attacked["p99"], attacked["published"], attacked["lost"], attacked["refused"])


async def run_attacks(attacks: Sequence[Attack], times: AttackTimes, tick: Ticker) -> list[AttackResult]:
    results = []
    for attack in attacks:
        tick(attack.name, 0)
        results.append(await run_attack(attack, times, lambda steps, name=attack.name: tick(name, steps)))  # type: ignore[misc]
    return results

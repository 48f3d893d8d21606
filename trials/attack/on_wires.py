"""A stranger on the wires of a network whose domain has a secret: they hear everything, and say what they like.

The cables run through their hands, so they speak with the address of any neighbour; and one neighbour is configured and
not there, whose address they have.
"""

import os
import random
import socket
import time
from collections.abc import Callable, Iterator, Sequence

from psirp_stack.wire.numbers import OFFER_BYTES, OFFER_TYPE
from trials.attack.forgery import everything_for
from trials.attack.places import HUB, STRANGER, UNUSED_PORT
from trials.attack.stranger import Attack, Stranger, Victim
from trials.attack.wires import Cable

AT_ONCE = 32
PAUSE = 0.01
"""Seconds between two batches: some thousand frames a second, on each way."""
OFFERS_AT_ONCE = 100
BRIDGES = {"hub-core": ("hub", "core"), "core-far": ("core", "far")}
WAIT_FOR_WORDS = 5.0


class OnTheWire:
    """Both cables, and the place of the neighbour that is not there."""

    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger
        self.cables = [Cable(bridge, ends) for bridge, ends in BRIDGES.items()]
        self._unused = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._unused.bind((STRANGER, UNUSED_PORT))
        self._unused.setblocking(False)
        for cable in self.cables:
            stranger.at_the_end(cable.close)
        stranger.at_the_end(self._unused.close)

    async def heard(self) -> None:
        """Until all have spoken."""
        until = time.monotonic() + WAIT_FOR_WORDS
        while not all(cable.is_heard for cable in self.cables) and time.monotonic() < until:
            await self._stranger.pause(0.1)

    def say(self, cable: Cable, to: str, frames: Sequence[bytes], what: str) -> None:
        self._stranger.counts[what] += cable.say(to, frames)

    def say_as_absent(self, frames: Sequence[bytes], what: str) -> None:
        """To the attacked gateway, from the address of the neighbour that it waits for."""
        for frame in frames:
            try:
                self._unused.sendto(frame, (HUB, UNUSED_PORT))
            except OSError:
                continue
            self._stranger.counts[what] += 1


async def forged_frames(stranger: Stranger) -> None:
    """Announcements, segments, link states and orders that nobody sealed, in the name of whoever would be believed."""
    wire = OnTheWire(stranger)
    await wire.heard()
    wall_ms = time.time_ns() // 1_000_000
    boot = wall_ms // 10
    ways: list[tuple[Callable[[Sequence[bytes]], None], Iterator[Sequence[bytes]]]] = [
        (lambda frames: wire.say_as_absent(frames, "as the absent neighbour"),
         batches(everything_for("hub", "absent", boot, wall_ms))),
    ]  # fmt: skip
    for cable in wire.cables:
        for to, neighbour in (cable.ends, cable.ends[::-1]):
            ways.append((
                lambda frames, cable=cable, to=to: wire.say(cable, to, frames, "as a neighbour"),  # type: ignore[misc]
                batches(everything_for(to, neighbour, boot, wall_ms)),
            ))  # fmt: skip
    while stranger.goes_on:
        for say, frames in ways:
            say(next(frames))
        await stranger.pause(PAUSE)


async def replayed_frames(stranger: Stranger) -> None:
    """What neighbours said: said again to whom it was said, back to who said it, on the other cable, and spoilt."""
    wire = OnTheWire(stranger)
    await wire.heard()
    await stranger.pause(stranger.seconds / 4)
    rng = random.Random(1)  # noqa: S311  (repeatable on purpose)
    while stranger.goes_on:
        for cable in wire.cables:
            for end, other in (cable.ends, cable.ends[::-1]):
                heard = list(cable.heard[end])
                chosen = heard[-AT_ONCE // 2 :] + rng.choices(heard, k=AT_ONCE // 2)
                wire.say(cable, other, chosen, "replayed")
                wire.say(cable, end, chosen[:8], "sent back")
                wire.say(cable, other, [spoilt(frame, rng) for frame in chosen], "spoilt")
                for elsewhere in wire.cables:
                    if elsewhere is not cable:
                        wire.say(elsewhere, elsewhere.ends[0], chosen[:8], "on the other cable")
                wire.say_as_absent(chosen[:8], "as the absent neighbour")
        await stranger.pause(PAUSE)


async def offers(stranger: Stranger) -> None:
    """Handshakes without end: offers that nobody proved, and those of real neighbours, from all addresses."""
    wire = OnTheWire(stranger)
    await wire.heard()
    rng = random.Random(1)  # noqa: S311  (repeatable on purpose)
    while stranger.goes_on:
        made = [bytes((OFFER_TYPE,)) + os.urandom(OFFER_BYTES - 1) for _ in range(OFFERS_AT_ONCE)]
        heard = [frame for cable in wire.cables for end in cable.ends for frame in cable.heard[end]]
        real = [frame for frame in heard if frame[0] == OFFER_TYPE and len(frame) == OFFER_BYTES]
        for frame in real[-OFFERS_AT_ONCE:]:
            made += [frame, spoilt(frame, rng)]
        # Of the right form, so that all that is missing is the secret.
        made += [good_form(rng) for _ in range(OFFERS_AT_ONCE)]
        wire.say_as_absent(made, "offers as the absent neighbour")
        for cable in wire.cables:
            for to in cable.ends:
                wire.say(cable, to, made, "offers as a neighbour")
        await stranger.pause(PAUSE)


def good_form(rng: random.Random) -> bytes:
    """An offer that says version 1, the cipher and a first step, and has no proof."""
    return bytes((OFFER_TYPE, 1, 1, rng.choice((0, 1, 2)))) + rng.randbytes(OFFER_BYTES - 4)


def spoilt(frame: bytes, rng: random.Random) -> bytes:
    changed = bytearray(frame)
    at = rng.randrange(len(changed))
    changed[at] ^= 1 << rng.randrange(8)
    return bytes(changed[: rng.randrange(1, len(changed))]) if rng.random() < 0.2 else bytes(changed)


def batches(frames: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Without end."""
    at = 0
    while True:
        yield frames[at : at + AT_ONCE]
        at = 0 if at + AT_ONCE >= len(frames) else at + AT_ONCE


ATTACKS = (
    Attack(
        "forged-frames",
        "announcements, segments, link states and orders in the name of neighbours, on every cable",
        forged_frames,
        Victim.GATEWAY,
    ),
    Attack(
        "replayed-frames",
        "all that neighbours said, again, backwards, elsewhere and spoilt",
        replayed_frames,
        Victim.GATEWAY,
    ),
    Attack("offers", "handshakes without end from addresses of neighbours", offers, Victim.GATEWAY),
)

"""Feed hostile frames to the ends of sealed links: handshakes under way, sessions in use, and the frames' own codec.

Targets are functions from bytes to a short reason, as in `trials.fuzz.wire`. Seeds are everything that two honest ends
said to each other, in several lives; most are spoilt. Some offers get a MAC after they were spoilt, and echo the share
that an end has now: only a bad member could send those, and they reach the deepest. They are of the domain of the end
that has no neighbour: what a member may do to a link in use is another question.
"""

import random
from collections import deque
from collections.abc import Iterator

from psirp_stack.sealing.channel import SealConfig, SealedChannel
from psirp_stack.sealing.keys import DomainKeys
from psirp_stack.sealing.offers import OfferError, pack_offer, parse_offer
from psirp_stack.wire.numbers import (
    OFFER_BYTES,
    OFFER_ECHO_OFFSET,
    OFFER_MAC_OFFSET,
    OFFER_SHARE_OFFSET,
    OFFER_TYPE,
    SEALED_TYPE,
    SHARE_ID_BYTES,
)
from trials.fuzz.node import spoilt
from trials.fuzz.wire import Target

DOMAIN = DomainKeys.of(b"the fuzzed domain's secret")
BAD_MEMBERS = DomainKeys.of(b"a secret that the fuzzer knows")
CONFIG = SealConfig(renew_after=5.0, dead_after=20.0, overlap=1.0, silence=2.0)
"""Short lives, so that keys are renewed and die within a run."""
STEP_SECONDS = 0.001
CHECK_EVERY = 100
"""Frames after which honest ends are seen to still hear each other."""
SHARES_KNOWN = 8
WORDS = 4
"""Frames that honest ends say each time, each way."""


class FuzzedLinks:
    """Two honest ends in use, and one whose neighbour never comes, under one clock."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self._rng = random.Random(seed)  # noqa: S311  # repeatable on purpose
        self._shares: deque[bytes] = deque(maxlen=SHARES_KNOWN)
        self._count = 0
        self.seeds: list[bytes] = []
        for _ in range(4):
            self._one, self._other = self._end(), self._end()
            self.seeds += self._exchange(self._one, self._other)
        self._old = len(self.seeds)
        self._lonely = self._end(BAD_MEMBERS)

    def targets(self) -> dict[str, Target]:
        return {"offers": _offers, "in use": self._in_use, "alone": self._alone}

    def hostile(self) -> Iterator[bytes]:
        """Without end."""
        rng = self._rng
        for frame in spoilt(self.seeds, rng):
            choice = rng.random()
            if len(frame) == OFFER_BYTES and choice < 0.5:
                spoilt_offer = bytearray(frame)
                spoilt_offer[0] = OFFER_TYPE
                if choice < 0.3 and self._shares:
                    spoilt_offer[OFFER_ECHO_OFFSET : OFFER_ECHO_OFFSET + SHARE_ID_BYTES] = rng.choice(self._shares)
                unproved = bytes(spoilt_offer[:OFFER_MAC_OFFSET])
                yield unproved + BAD_MEMBERS.mac(unproved)
            else:
                yield frame

    def _end(self, domain: DomainKeys = DOMAIN) -> SealedChannel:
        return SealedChannel(domain, self._rng.randbytes, self.now, CONFIG)

    def _in_use(self, data: bytes) -> str:
        """One end of two that speak with each other: nothing that arrives beside may get through or disturb them."""
        self.now += STEP_SECONDS
        self._count += 1
        reason = self._give(self._one, data)
        if self._count % CHECK_EVERY == 0:
            for end in (self._one, self._other):
                end.handle_timer(self.now)
            # Half of what is spoilt from now on is of the present session.
            del self.seeds[self._old :]
            fresh = self._exchange(self._one, self._other)
            self.seeds += fresh * (self._old // len(fresh))
        return reason

    def _alone(self, data: bytes) -> str:
        """An end that still waits for its neighbour: no session may come of what is hostile."""
        if self._count % CHECK_EVERY == 0:
            self._lonely.handle_timer(self.now)
        reason = self._give(self._lonely, data)
        if self._lonely.proved:
            raise AssertionError("somebody without a session's keys made a session")
        return reason

    def _give(self, end: SealedChannel, data: bytes) -> str:
        before = end.drops.copy()
        if end.open([data], self.now):
            raise AssertionError("a frame got through that the neighbour did not send now")
        while (said := end.next_frame()) is not None:
            self._shares.append(said[OFFER_SHARE_OFFSET : OFFER_SHARE_OFFSET + SHARE_ID_BYTES])
        dropped = end.drops - before
        return f"dropped: {next(iter(dropped)).value}" if dropped else "taken"

    def _exchange(self, one: SealedChannel, other: SealedChannel) -> list[bytes]:
        """Let two ends say what they have to say, then some frames each way; gives all that went over the wire."""
        heard: list[bytes] = []
        for _ in range(8):
            for end, to in ((one, other), (other, one)):
                while (offer := end.next_frame()) is not None:
                    heard.append(offer)
                    to.open([offer], self.now)
            self.now += 0.2
            for end in (one, other):
                end.handle_timer(self.now)
        for end, to in ((one, other), (other, one)):
            words = [self._rng.randbytes(self._rng.randrange(1, 200)) for _ in range(WORDS)]
            sealed = end.seal(words)
            heard += sealed
            if to.open(sealed, self.now) != words:
                raise AssertionError("two honest ends do not hear each other")
        return heard


def _offers(data: bytes) -> str:
    try:
        offer, mac = parse_offer(data)
    except OfferError:
        return "sealed frame" if data[:1] == bytes((SEALED_TYPE,)) else "refused"
    if pack_offer(offer) + mac != data:
        raise AssertionError("builds to other bytes than it was parsed from")
    return "parsed"

"""The handshake of a sealed link: two neighbours prove the domain's secret to each other and agree on fresh keys.

Both ends do the same; there is no client and no server. Each has a share (an X25519 key with a random number) and sends
offers of it. The rules:

1. An offer without the domain's MAC is dropped before anything else is done with it.
2. An offer that echoes the number of our present share was made now, by somebody who knows the secret: nobody could
   have recorded it before. Only such an offer costs an X25519 agreement. It is answered with our confirmation
   (`CONFIRM`), which only the session's keys give; the right confirmation of the other makes the session.
3. An offer that echoes nobody may be a recording. It is answered with our offer, echoing it, and changes nothing else.
4. Whoever gets a `CONFIRM` for the session that it made last answers `SETTLED`, as often as it is asked: the first
   answer may have been lost. A `SETTLED` is never answered, so that two ends that are done fall silent.
5. Whoever wants a session repeats what it said last, ever more slowly, until there is one.
6. A share makes one session and is forgotten then, or after a while; so are its agreements (`candidates`).

So a stranger's frames cost a MAC; recorded ones a MAC and now and then an answer of the same size; and a session that
is in use stays until another one is proved.
"""

import hmac
from collections import Counter, deque
from dataclasses import dataclass

from psirp_stack.sealing.keys import DomainKeys, Entropy, HandshakeShare, SessionKeys, WeakShareError, session_keys
from psirp_stack.sealing.offers import NOBODY, NOT_CONFIRMED, Offer, OfferError, Step, pack_offer, parse_offer
from psirp_stack.sealing.session import SealDrop

MAX_CANDIDATES = 4
"""Agreements that one share takes part in: a neighbour that restarts meanwhile needs a second one."""
MAX_WAITING = 8
"""Offers that wait to be sent; older ones would be out of date."""


@dataclass(frozen=True, slots=True)
class HandshakeTimes:
    """Seconds."""

    first_retry: float = 0.1
    max_retry: float = 2.0
    share_life: float = 20.0
    """A share that made no session in this time is replaced."""
    reply_interval: float = 0.02
    """Least time between two answers to offers that may be recordings."""


class Handshake:
    """One end. Feed it offers with `receive`, send what `next_frame` gives, call `handle_timer` at `next_timer`."""

    def __init__(
        self, domain: DomainKeys, entropy: Entropy, drops: Counter[SealDrop], times: HandshakeTimes | None = None
    ) -> None:
        self.times = times if times is not None else HandshakeTimes()
        self._domain = domain
        self._entropy = entropy
        self._drops = drops
        self._share: HandshakeShare | None = None
        self._share_until = 0.0
        self._candidates: dict[tuple[bytes, bytes], SessionKeys] = {}
        self._last: SessionKeys | None = None
        self._wanted = False
        self._retry = self.times.first_retry
        self._retry_at = 0.0
        self._may_reply_at = float("-inf")
        self._waiting: deque[bytes] = deque(maxlen=MAX_WAITING)

    @property
    def wanted(self) -> bool:
        return self._wanted

    @property
    def candidates(self) -> tuple[SessionKeys, ...]:
        """Sessions that the neighbour may have made already: what opens with their keys proves that it has."""
        return tuple(self._candidates.values())

    def want(self, now: float) -> None:
        """Make a new session, however long it takes."""
        if not self._wanted:
            self._wanted = True
            self._retry = self.times.first_retry
            self._retry_at = now
            self._say_again(now)

    def receive(self, frame: bytes, now: float) -> SessionKeys | None:
        """Take in an offer; the keys of a session, when it made one."""
        try:
            offer, mac = parse_offer(frame)
        except OfferError:
            self._drops[SealDrop.MALFORMED_OFFER] += 1
            return None
        if not self._domain.proves(frame[: -len(mac)], mac):
            self._drops[SealDrop.WRONG_SECRET] += 1
            return None
        share, last = self._share, self._last
        if (share is not None and offer.share == share.id) or (last is not None and offer.share == last.own):
            self._drops[SealDrop.REFLECTED] += 1
        elif share is not None and offer.echo == share.id:
            return self._fresh(share, offer)
        elif last is not None and (offer.echo, offer.share) == (last.own, last.peer):
            if offer.step is Step.CONFIRM:
                self._say(Step.SETTLED, last.own, last.public, last.peer, last.send.confirmation)
        elif offer.step is Step.ASK and offer.echo == NOBODY:
            self._answer(offer, now)
        else:
            self._drops[SealDrop.STALE_OFFER] += 1
        return None

    def made(self, keys: SessionKeys) -> None:
        """This session is proved: by an offer, or by a frame that opened with its keys."""
        self._last = keys
        self._share = None
        self._candidates.clear()
        self._wanted = False

    def next_frame(self) -> bytes | None:
        return self._waiting.popleft() if self._waiting else None

    def next_timer(self) -> float | None:
        times = []
        if self._wanted:
            times.append(self._retry_at)
        if self._share is not None:
            times.append(self._share_until)
        return min(times, default=None)

    def handle_timer(self, now: float) -> None:
        if self._share is not None and self._share_until <= now:
            self._share = None
            self._candidates.clear()
        if self._wanted and self._retry_at <= now:
            self._say_again(now)

    def _fresh(self, share: HandshakeShare, offer: Offer) -> SessionKeys | None:
        """An offer that the neighbour made for our present share."""
        name = (offer.share, offer.public)
        keys = self._candidates.get(name)
        if keys is None:
            if len(self._candidates) >= MAX_CANDIDATES:
                self._drops[SealDrop.TOO_MANY_OFFERS] += 1
                return None
            try:
                keys = session_keys(self._domain, share, offer.share, offer.public)
            except WeakShareError:
                self._drops[SealDrop.MALFORMED_OFFER] += 1
                return None
            self._candidates[name] = keys
        if offer.step is Step.ASK:
            self._confirm(keys)
            return None
        if not hmac.compare_digest(offer.confirmation, keys.receive.confirmation):
            self._drops[SealDrop.WRONG_CONFIRMATION] += 1
            return None
        if offer.step is Step.CONFIRM:
            self._say(Step.SETTLED, keys.own, keys.public, keys.peer, keys.send.confirmation)
        self.made(keys)
        return keys

    def _answer(self, offer: Offer, now: float) -> None:
        """Answer an offer that may be a recording."""
        if now < self._may_reply_at:
            self._drops[SealDrop.TOO_MANY_OFFERS] += 1
            return
        self._may_reply_at = now + self.times.reply_interval
        share = self._present_share(now)
        self._say(Step.ASK, share.id, share.public, offer.share, NOT_CONFIRMED)

    def _say_again(self, now: float) -> None:
        self._retry_at = now + self._retry
        self._retry = min(2 * self._retry, self.times.max_retry)
        if self._candidates:
            self._confirm(next(reversed(self._candidates.values())))
        else:
            share = self._present_share(now)
            self._say(Step.ASK, share.id, share.public, NOBODY, NOT_CONFIRMED)

    def _present_share(self, now: float) -> HandshakeShare:
        if self._share is None:
            self._share = HandshakeShare.new(self._entropy)
            self._share_until = now + self.times.share_life
        return self._share

    def _confirm(self, keys: SessionKeys) -> None:
        self._say(Step.CONFIRM, keys.own, keys.public, keys.peer, keys.send.confirmation)

    def _say(self, step: Step, own: bytes, public: bytes, peer: bytes, confirmation: bytes) -> None:
        offer = pack_offer(Offer(step, own, public, peer, confirmation))
        self._waiting.append(offer + self._domain.mac(offer))

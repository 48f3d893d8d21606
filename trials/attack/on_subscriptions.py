"""Subscriptions without number, asked for from many networks."""

import asyncio
from collections import Counter
from urllib.parse import parse_qs, urlsplit

from perf.loopback import LoopbackRequest, Reply, answer
from trials.attack.places import FEED, silent_name, stranger_address, stranger_name
from trials.attack.stranger import MEBIBYTE, Attack, Stranger, Victim, confirms

IN_ALL = 600
PER_NETWORK = 10
PER_ADDRESS = 4
WAITING = 600
WAITING_PER_NETWORK = 10
EAGER = 16
"""Networks that half of the requests come from: these reach their own share, and all together the whole."""
NETWORKS = 256
AGREEING = 1000
"""Of the first requests: all callbacks agree. Later half of them never answer, or are nowhere."""
SECTIONS = f"""
[limits]
subscriptions = {IN_ALL}
subscriptions_per_network = {PER_NETWORK}
subscriptions_per_address = {PER_ADDRESS}
pending_checks = {WAITING}
pending_per_network = {WAITING_PER_NETWORK}
"""
AT_ONCE = 200
HEARD = 3.0
"""Seconds in which whoever is subscribed gets what somebody innocent publishes meanwhile."""
TAKEN = 202


class FloodCallbacks:
    """Of all networks: /confirm/NETWORK/NUMBER agrees to everything, /silent/... never answers."""

    def __init__(self, stranger: Stranger) -> None:
        self._stranger = stranger
        self.served: set[tuple[str, str]] = set()
        """Networks and callbacks that got a publication."""

    def __call__(self, request: LoopbackRequest, reply: Reply) -> None:
        where = urlsplit(request.target)
        checked = confirms(request)
        if where.path.startswith("/silent/"):
            self._stranger.counts["checks held"] += 1
        elif checked is not None:
            self._stranger.counts["checks confirmed"] += 1
            reply(checked)
        elif request.method == "POST":
            _, _, network, _ = where.path.split("/")
            self.served.add((network, where.path))
            reply(answer(204))
        elif parse_qs(where.query).get("hub.mode") == ["denied"]:
            self._stranger.counts["denied when confirmed"] += 1
            reply(answer(204))
        else:
            reply(answer(404))


def source_of(number: int) -> str:
    turn = number // 2
    return stranger_address(turn % EAGER + NETWORKS * (turn // EAGER) if number % 2 else turn)


def callback_of(number: int, source: str) -> str:
    network = source.split(".")[2]
    match number // 2 % 4 if number >= AGREEING else 2:
        case 0:
            return f"http://{stranger_name(f's{number}', source)}/silent/{network}/{number}"
        case 1:
            return f"http://{silent_name(f's{number}')}/confirm/{network}/{number}"
    return f"http://{stranger_name(f's{number}', source)}/confirm/{network}/{number}"


async def flood(stranger: Stranger) -> None:
    """To what somebody innocent publishes: callbacks that agree, that never answer and that nobody finds, on and on."""
    callbacks = FloodCallbacks(stranger)
    await stranger.listen(callbacks)
    number = 0
    while stranger.goes_on:
        sources = [(number + n, source_of(number + n)) for n in range(AT_ONCE)]
        await stranger.together(
            stranger.subscribe(FEED, callback_of(at, source), source=source) for at, source in sources
        )
        number += AT_ONCE
    await asyncio.sleep(HEARD)
    stranger.counts["subscriptions served"] = len(callbacks.served)
    if len(callbacks.served) > IN_ALL:
        stranger.breach(f"{len(callbacks.served)} subscriptions are served, allowed {IN_ALL}")
    most = max(Counter(network for network, _ in callbacks.served).values(), default=0)
    stranger.counts["most of one network"] = most
    if most > PER_NETWORK:
        stranger.breach(f"one network has {most} subscriptions, allowed {PER_NETWORK}")
    for _, path in sorted(callbacks.served)[:PER_NETWORK]:
        at = int(path.rpartition("/")[2])
        status, _ = await stranger.subscribe(FEED, callback_of(at, source_of(at)), source=source_of(at))
        if status != TAKEN:
            stranger.breach(f"what is there was not renewed while nothing new is taken: {status}")


ATTACKS = (
    Attack(
        "subscription-flood",
        f"subscriptions from {NETWORKS} networks, whose callbacks agree, are silent, or are nowhere",
        flood,
        Victim.GATEWAY,
        sections=SECTIONS,
        # About 15,000 requests in 7 s made a gateway that had just begun grow by 59 MiB.
        memory=128 * MEBIBYTE,
        rows=IN_ALL + WAITING,
    ),
)

"""In which order the gateways of a domain are tried: RFC 2782, page 3. Sans-I/O: the randomness comes in.

Lower priorities come first. Among equals, each next one is drawn with a chance in proportion to its weight; one of
weight 0 is drawn rarely while others of more weight are left, but it is drawn.
"""

import random
from collections.abc import Iterable
from itertools import groupby

from gateway.discovery.model import GatewayRecord


def stable_order(gateways: Iterable[GatewayRecord]) -> list[GatewayRecord]:
    """By priority, the heavier first, then by name: whatever order an answer came in."""
    return sorted(gateways, key=lambda each: (each.priority, -each.weight, each.target, each.port))


def order_to_try(gateways: Iterable[GatewayRecord], rng: random.Random) -> list[GatewayRecord]:
    # The fixed order first, so that one seed gives one result however the name server shuffled its answer.
    ordered: list[GatewayRecord] = []
    for _, equals in groupby(stable_order(gateways), key=lambda each: each.priority):
        ordered += _draw_by_weight(list(equals), rng)
    return ordered


def _draw_by_weight(equals: list[GatewayRecord], rng: random.Random) -> list[GatewayRecord]:
    # The RFC wants those of weight 0 at the head of the list and leaves the rest open; the shuffle is what shares the
    # load between several of weight 0, because the draw always finds the first of them.
    rng.shuffle(equals)
    waiting = sorted(equals, key=lambda each: each.weight > 0)
    drawn = []
    while waiting:
        mark = rng.randint(0, sum(each.weight for each in waiting))
        running = 0
        for position, each in enumerate(waiting):
            running += each.weight
            if running >= mark:
                drawn.append(waiting.pop(position))
                break
    return drawn

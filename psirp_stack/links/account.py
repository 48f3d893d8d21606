"""What a link has to say for itself: whether it is sealed and proved, and what was dropped on it, by reason."""

from psirp_stack.links.interface import Link, LinkAccount
from psirp_stack.links.sealed import SealedLink
from psirp_stack.links.sockets import SocketLink


def carrier_of(link: Link) -> Link:
    """What is below all that wraps it."""
    while (inner := getattr(link, "link", None)) is not None:
        link = inner
    return link


def sealed_in(link: Link) -> SealedLink | None:
    """The seal among what wraps a carrier."""
    layer: Link | None = link
    while layer is not None and not isinstance(layer, SealedLink):
        layer = getattr(layer, "link", None)
    return layer


def account_of(link: Link) -> LinkAccount:
    seal, counters = sealed_in(link), link.counters
    drops = {
        "longer than the MTU": counters.oversized,
        "no room in the queue to send": counters.queue_full,
        "could not be sent": counters.send_errors,
        "could not be received": counters.receive_errors,
        "not from the configured neighbour": counters.from_strangers,
    }
    carrier = carrier_of(link)
    shortage = None
    if isinstance(carrier, SocketLink):
        drops["lost in the kernel's receive buffer"] = carrier.lost_in_kernel
        shortage = carrier.shortage
    if seal is not None:
        drops |= {reason.value: count for reason, count in seal.drops.items()}
    return LinkAccount(seal is not None, seal is not None and seal.proved, drops, shortage)

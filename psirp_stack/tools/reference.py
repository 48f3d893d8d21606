"""The reference forwarder: what a node does with a frame, written plainly with scapy.

This is the executable specification. The fast forwarder must take the same decision on every frame; it may only add
its memory of recent frames (loop prevention), which this one does not have.
"""

from psirp_stack.forwarding_model import (
    BROADCAST_FID,
    FID_BYTES,
    MAX_FILTER_FILL,
    TABLES,
    Decision,
    Drop,
    ForwardingTable,
    LinkNumber,
    Tags,
)
from psirp_stack.tools.layers import PSIRPHeader, PSIRPMetadata, chain_of


def reference_decision(frame: bytes, arrival: LinkNumber | None, table: ForwardingTable) -> Decision:
    """Decide on one frame. `arrival` is the link it came in on, None when this node made it."""
    headers = chain_of(frame)
    if headers is None:
        return dropped(frame, Drop.MALFORMED)
    forwarding = headers[0]

    if forwarding.fid == BROADCAST_FID:
        deliver = arrival is not None
        matching = set() if deliver else set(table.links)
    else:
        zfilter, index = int.from_bytes(forwarding.fid[:-1], "big"), forwarding.fid[-1]
        if index >= TABLES:
            return dropped(frame, Drop.UNKNOWN_TABLE)
        if zfilter.bit_count() > MAX_FILTER_FILL:
            return dropped(frame, Drop.OVERFULL)
        if forwarding.ttl == 0:
            return dropped(frame, Drop.TTL_EXPIRED)
        deliver = contains(zfilter, table.internal, index)
        matching = {link for link, tags in table.links.items() if contains(zfilter, tags, index)}

    matching -= {arrival}
    if forwarding.fid != BROADCAST_FID:
        extended = zfilter
        for detour in table.detours:
            longer = extended | detour.way[index]
            named = contains(zfilter, detour.tags, index) and detour.out in table.links
            if named and detour.way[index] & ~zfilter and longer.bit_count() <= MAX_FILTER_FILL:
                extended = longer
                matching.add(detour.out)
        forwarding.fid = extended.to_bytes(FID_BYTES - 1, "big") + bytes((index,))

    out = sorted(matching)
    if not out and not deliver:
        return dropped(frame, Drop.NO_MATCH)
    forwarding.ttl = max(forwarding.ttl - 1, 0)
    if forwarding.ttl == 0:
        if not deliver:
            return dropped(frame, Drop.TTL_EXPIRED)
        out = []
    if arrival is not None and arrival in table.links:
        collect_way_back(headers, table.links[arrival])
    return Decision(tuple(out), deliver, bytes(forwarding))


def contains(zfilter: int, tags: Tags, index: int) -> bool:
    tag = tags[index]
    return tag != 0 and zfilter & tag == tag


def collect_way_back(headers: list[PSIRPHeader], tags: Tags) -> None:
    """Add the link back to where the frame came from to the metadata header's FID, in the table that FID names."""
    for header in headers:
        if isinstance(header, PSIRPMetadata) and header.collected_fid[-1] < TABLES:
            tag = tags[header.collected_fid[-1]]
            collected = int.from_bytes(header.collected_fid, "big") | tag << 8
            header.collected_fid = collected.to_bytes(FID_BYTES, "big")


def dropped(frame: bytes, reason: Drop) -> Decision:
    return Decision((), False, frame, reason)

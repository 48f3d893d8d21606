"""Networks whose forwarders are the reference: slow, readable, and shown packet by packet.

`with_reference(plan, ...)` makes every node of a plan's network forward with scapy. Whoever watches is told of each
packet at each hop (`packet_text` puts that into words); a `Comparison` has the fast forwarder decide on every frame as
well, and keeps the frames on which the two differ.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial

from psirp_stack.control.codes import CONTROL_PREFIX, Function
from psirp_stack.control.frames import has_control_scope
from psirp_stack.emulation.plan import NetworkPlan
from psirp_stack.forwarder import Forwarder, ForwarderStatistics, FrameForwarder, Send, SendMany
from psirp_stack.forwarding_memory import LoopMemory
from psirp_stack.forwarding_model import BROADCAST_FID, FILTER_BITS, Decision, Drop, ForwardingTable, LinkNumber
from psirp_stack.node.settings import NodeSettings
from psirp_stack.tools.dissect import dissect_frame
from psirp_stack.tools.layers import PSIRPForwarding
from psirp_stack.tools.pcap import LINKTYPE_USER0, Record
from psirp_stack.tools.reference import contains, reference_decision
from psirp_stack.wire.numbers import FID_OFFSET, FORWARDING_BYTES, SID_OFFSET

REMEMBERED = 1024
REMEMBERED_FOR = 1.0
"""Filters that may come round, and for how many seconds: as many as the fast forwarder remembers."""
MAX_DIFFERENCES = 100
MAX_BITS_SHOWN = 24

_FUNCTION_AT = FORWARDING_BYTES + SID_OFFSET + len(CONTROL_PREFIX)


@dataclass(frozen=True, slots=True)
class PacketAtHop:
    """What one forwarder did with one packet."""

    at: float
    node: str
    arrival: LinkNumber | None
    """The link it came by; None when the node made it."""
    frame: bytes
    """As it came."""
    decision: Decision


@dataclass(frozen=True, slots=True)
class Difference:
    """A packet on which the two forwarders differ."""

    node: str
    arrival: LinkNumber | None
    frame: bytes
    reference: Decision
    fast: Decision


@dataclass(slots=True)
class Comparison:
    """What came of having the fast forwarder decide as well."""

    compared: int = 0
    differing: int = 0
    differences: list[Difference] = field(default_factory=list)
    """The first of them."""


Watch = Callable[[PacketAtHop], None]


class ReferenceForwarder:
    """Forwards for one node, one packet after the other, as `reference_decision` says."""

    def __init__(
        self, name: str, table: ForwardingTable, watch: Watch | None = None, comparison: Comparison | None = None
    ) -> None:
        self.name = name
        self.statistics = ForwarderStatistics()
        self._table = table
        self._watch = watch
        self._sends: dict[LinkNumber, Send] = {}
        self._deliver: Send | None = None
        self._loops = LoopMemory(REMEMBERED, REMEMBERED_FOR)
        self._beside = None if comparison is None else _FastBeside(table, comparison)

    def replace_table(self, table: ForwardingTable) -> None:
        self._table = table
        self._loops.clear()
        if self._beside is not None:
            self._beside.replace_table(table)

    def attach(self, number: LinkNumber, send: Send, send_many: SendMany | None = None) -> None:
        self._sends[number] = send

    def detach(self, number: LinkNumber) -> None:
        self._sends.pop(number, None)

    def deliver_to(self, receive: Send | None) -> None:
        self._deliver = receive

    def forward(self, frames: Iterable[bytes], arrival: LinkNumber | None, now: float) -> None:
        for frame in frames:
            decision = self.decide(frame, arrival, now)
            self._count(frame, decision)
            if self._beside is not None:
                self._beside.compare(self.name, frame, arrival, now, decision)
            if self._watch is not None:
                self._watch(PacketAtHop(now, self.name, arrival, frame, decision))
            for number in decision.out:
                if number in self._sends:
                    self._sends[number](decision.frame)
            if decision.deliver and self._deliver is not None:
                self._deliver(decision.frame)

    def decide(self, frame: bytes, arrival: LinkNumber | None, now: float) -> Decision:
        """The reference's decision, and beyond it: what came round is dropped."""
        decision = reference_decision(frame, arrival, self._table)
        if decision.drop is None and self._came_round(frame, arrival, now):
            return Decision((), False, frame, Drop.LOOP)
        return decision

    def _came_round(self, frame: bytes, arrival: LinkNumber | None, now: float) -> bool:
        """A filter that also names another way into this node may come again by that way."""
        header = PSIRPForwarding(frame)
        if header.fid == BROADCAST_FID:
            return self._loops.is_repeat(header.fid, False, arrival, now)
        zfilter, index = int.from_bytes(header.fid[:-1], "big"), header.fid[-1]
        ways_in = (tags for number, tags in self._table.incoming.items() if number != arrival)
        may_return = any(contains(zfilter, tags, index) for tags in ways_in)
        return self._loops.is_repeat(header.fid, may_return, arrival, now)

    def _count(self, frame: bytes, decision: Decision) -> None:
        statistics = self.statistics
        statistics.received += 1
        if decision.drop is not None:
            statistics.drops[decision.drop] += 1
            return
        statistics.forwarded += bool(decision.out)
        statistics.copies += len(decision.out)
        statistics.delivered += decision.deliver
        statistics.detoured += PSIRPForwarding(decision.frame).fid != PSIRPForwarding(frame).fid


class _FastBeside:
    """The fast forwarder on the same packets, by the way that a running node takes: `forward`, with its caches."""

    def __init__(self, table: ForwardingTable, comparison: Comparison) -> None:
        self._comparison = comparison
        self._fast = Forwarder(table)
        self._sent: dict[LinkNumber, list[bytes]] = {}
        self._delivered: list[bytes] = []
        self._fast.deliver_to(self._delivered.append)
        self._attach_all(table)

    def replace_table(self, table: ForwardingTable) -> None:
        self._fast.replace_table(table)
        self._attach_all(table)

    def _attach_all(self, table: ForwardingTable) -> None:
        for number in table.links:
            self._fast.attach(number, partial(self._take, number))

    def _take(self, number: LinkNumber, frame: bytes) -> None:
        self._sent.setdefault(number, []).append(frame)

    def compare(self, node: str, frame: bytes, arrival: LinkNumber | None, now: float, reference: Decision) -> None:
        self._sent.clear()
        self._delivered.clear()
        drops = self._fast.statistics.drops
        before = dict(drops)
        self._fast.forward([frame], arrival, now)
        dropped = [reason for reason in Drop if drops[reason] > before[reason]]
        left = [*(sent[0] for sent in self._sent.values()), *self._delivered]
        fast = Decision(
            tuple(sorted(self._sent)),
            bool(self._delivered),
            left[0] if left else frame,
            dropped[0] if dropped else None,
        )
        comparison = self._comparison
        comparison.compared += 1
        if fast != reference or any(other != fast.frame for other in left):
            comparison.differing += 1
            if len(comparison.differences) < MAX_DIFFERENCES:
                comparison.differences.append(Difference(node, arrival, frame, reference, fast))


def with_reference(plan: NetworkPlan, watch: Watch | None = None, comparison: Comparison | None = None) -> NetworkPlan:
    """The same network, forwarded by scapy. Plug-ins of the plan stay."""

    def forwarder(name: str, table: ForwardingTable) -> FrameForwarder:
        return ReferenceForwarder(name, table, watch, comparison)

    def change(given: NodeSettings) -> NodeSettings:
        return replace(given if plan.change is None else plan.change(given), forwarder=forwarder)

    return replace(plan, change=change)


# Packets in words.


class PacketsShown(StrEnum):
    """Which packets are shown."""

    PUBLICATIONS = "publications"
    """Versions, and what publishers and subscribers say to each other."""
    CONTROL = "control"
    """Those, and messages between nodes and roles; hellos and link states are left out."""
    ALL = "all"


def is_shown(frame: bytes, kind: PacketsShown) -> bool:
    if kind is PacketsShown.ALL or not has_control_scope(frame):
        return True
    function = frame[_FUNCTION_AT]
    if function in (Function.PULL, Function.PULLED):
        return True
    return kind is PacketsShown.CONTROL and function != Function.LINK_STATE


def packet_text(packet: PacketAtHop, neighbour: Callable[[str, LinkNumber], str]) -> str:
    """A packet at a hop, a line for each layer, and what was done with it. `neighbour` names a link's other end."""
    came = "made here" if packet.arrival is None else f"from {neighbour(packet.node, packet.arrival)}"
    record = Record(0, packet.frame, len(packet.frame), LINKTYPE_USER0)
    dissected = dissect_frame(0, record, packet.frame)
    decision = packet.decision
    done = [f"to {neighbour(packet.node, number)}" for number in decision.out]
    if decision.deliver:
        done.append("up the stack")
    if decision.drop is not None:
        done = [f"dropped: {decision.drop.value}"]
    lines = [f"{packet.at:.6f} {packet.node}, {came}, {len(packet.frame)} bytes", *dissected.lines]
    lines[1:2] = [*lines[1:2], *_filter_text(packet.frame)]
    return "\n    ".join([*lines, f"=> {', '.join(done)}"])


def _filter_text(frame: bytes) -> list[str]:
    """The bits that a filter has, which tags are compared with; nothing for what is no frame."""
    if len(frame) < FORWARDING_BYTES:
        return []
    fid = frame[FID_OFFSET:FORWARDING_BYTES]
    if fid == BROADCAST_FID:
        return ["filter: all ones, for every neighbour"]
    zfilter = int.from_bytes(fid[:-1], "big")
    bits = [str(bit) for bit in range(FILTER_BITS) if zfilter >> bit & 1]
    shown = " ".join(bits[:MAX_BITS_SHOWN]) + (" ..." if len(bits) > MAX_BITS_SHOWN else "")
    return [f"filter: {len(bits)} of {FILTER_BITS} bits: {shown}"]

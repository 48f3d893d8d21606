"""Networks of scapy for the command line: packets shown hop by hop, and compared with the fast forwarders."""

import sys

from psirp_stack.emulation.plan import NetworkPlan
from psirp_stack.forwarding_model import LinkNumber
from psirp_stack.tools.reference_network import (
    Comparison,
    PacketAtHop,
    PacketsShown,
    is_shown,
    packet_text,
    with_reference,
)


class ReferenceRun:
    """A plan whose forwarders are the reference, and what is seen of them."""

    def __init__(self, plan: NetworkPlan, shown: str | None, *, simulated: bool, step: bool, compare: bool) -> None:
        self._kind = None if shown is None else PacketsShown(shown)
        self._step = step
        self._comparison = Comparison() if compare else None
        self._names = _LinkNames(plan, 0 if simulated else 1)
        self.plan = with_reference(plan, None if self._kind is None else self._show, self._comparison)

    @property
    def differs(self) -> bool:
        return self._comparison is not None and self._comparison.differing > 0

    def found(self) -> str | None:
        """What comparing showed; None when nothing was compared."""
        comparison = self._comparison
        if comparison is None:
            return None
        text = f"{comparison.compared:,} decisions compared with the fast forwarders': {comparison.differing:,} differ"
        lines = [
            f"{each.node}: {each.frame.hex()}\n  reference: {each.reference}\n  fast: {each.fast}"
            for each in comparison.differences[:10]
        ]
        return "\n".join([text, *lines])

    def _show(self, packet: PacketAtHop) -> None:
        if self._kind is None or not is_shown(packet.frame, self._kind):
            return
        print(packet_text(packet, self._names), flush=True)
        if self._step and sys.stdin.readline() == "":
            self._step = False  # whoever pressed the keys has gone: go on to the end


class _LinkNames:
    """The neighbour at the end of a node's link: nodes number their links in the order of the plan."""

    def __init__(self, plan: NetworkPlan, first: int) -> None:
        self._first = first
        self._neighbours: dict[str, list[str]] = {name: [] for name in plan.graph.names}
        for one, other in plan.cables():
            self._neighbours[one].append(other)
            self._neighbours[other].append(one)

    def __call__(self, node: str, number: LinkNumber) -> str:
        return self._neighbours[node][number - self._first]

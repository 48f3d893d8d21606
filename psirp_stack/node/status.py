"""A node's account of itself, for people and dashboards: one JSON object."""

import json
from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING

from psirp_stack.control.codes import ServiceRole
from psirp_stack.control.role_grants import describe_roles

if TYPE_CHECKING:
    from psirp_stack.node.core import Node

MAX_DOUBTED_TOLD = 64
"""Nodes that claim roles which are not believed."""


def describe(node: "Node") -> str:
    return json.dumps(account(node))


def account(node: "Node") -> dict[str, object]:
    """What a node is, whom it sees, what it holds, and everything it dropped, by reason."""
    known = node.link_state.graph()
    names = known.graph.names
    neighbours = {number: name for name, number in node.link_state.neighbours().items()}
    forwarded = node.forwarder.statistics
    links = {number: node.link_accounts[number]() for number in sorted(node.links)}
    on_links = sum((Counter(link.drops) for link in links.values()), Counter[str]())
    return {
        "name": node.name,
        "boot": node.settings.boot,
        "roles": [role.name.lower() for role in ServiceRole if node.settings.roles & role and role.name],
        "rendezvous": list(node.link_state.nodes_with(ServiceRole.RENDEZVOUS)),
        "topology": list(node.link_state.nodes_with(ServiceRole.TOPOLOGY)),
        "doubted": [
            {"node": name, "roles": describe_roles(roles), "reason": reason}
            for name, (roles, reason) in sorted(node.link_state.doubted().items())[:MAX_DOUBTED_TOLD]
        ],
        "links": [
            {
                "number": number,
                "neighbour": neighbours.get(number),
                "sealed": link.sealed,
                "proved": link.proved,
                "shortage": link.shortage,
            }
            for number, link in links.items()
        ],
        "graph": {
            "nodes": list(names),
            "links": [[names[tail], names[head]] for tail, head in known.graph.links if tail < head],
        },
        "applications": [application.name for application in node.request_table.applications],
        "publishes": node.request_table.published_items,
        "subscribes": node.request_table.subscribed_items,
        "handed_out": node.request_table.handed_out,
        "forwarder": {
            "received": forwarded.received,
            "forwarded": forwarded.forwarded,
            "copies": forwarded.copies,
            "delivered": forwarded.delivered,
            "detoured": forwarded.detoured,
            "relayed": node.relays.passed,
        },
        "cache": {
            "versions": len(node.pulls.cache),
            "bytes": node.pulls.held_bytes,
            "most_bytes": node.pulls.cache.most_bytes,
            **asdict(node.pulls.cache.counters),
        },
        "filters": node.sender.filters,
        "sender": asdict(node.sender.counters),
        "receiver": asdict(node.receiver.counters),
        "matches": None if node.topology is None else node.topology.items,
        "drops": {
            **_counted("link", on_links),
            **_counted("forwarder", forwarded.drops),
            **_counted("control", node.control_drops),
            **_counted("courier", node.courier.drops),
            **_counted("link state", node.link_state.drops),
            **_counted("node", node.drops),
            **_counted("relay", node.relays.drops),
            **_counted("pull", node.pulls.drops),
            **_counted("refused", node.refusals),
        },
    }


def _counted(part: str, drops: dict[object, int] | object) -> dict[str, int]:
    counted = dict(drops) if isinstance(drops, dict) else {}
    return {f"{part}: {reason}": count for reason, count in counted.items() if count}

"""`psph explain`: why does nothing arrive? The question that users of information-centric networks ask most."""

import argparse
import json

from gateway.bootstrapping.standing import standing_of
from gateway.cli.admin_port import AdminPort, add_admin_arguments
from gateway.cli.names import NAMESPACES
from gateway.cli.psirp import add_naming_arguments, add_node_arguments, item_named, naming_of, with_node
from identifiers import HashName, ItemId, Naming, NoZoneError, Scheme, Topic, TopicError, zone_of
from identifiers.namespaces import UrlNamespace
from psirp_stack.control.codes import Code
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import Why

EXAMPLES = """
examples:
  psph explain http://example.com/feed
  psph explain ::01/::02 --json
  psph explain mqtt://home.example/kitchen/temp --who --admin http://127.0.0.1:8090/

It says the first thing that stands between publisher and subscriber: no publisher, no subscriber, refused, filter too
full, unreachable, or that somebody uses the same topic under another scheme or hash; and whether a gateway manages
the topic's zone, which is why a subscription to it is accepted or denied. With --who the protocols of a gateway say
which of their clients hear it, and by which filter. Exit code 0 when matched, 1 otherwise.
"""
EXIT_NOT_MATCHED = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Say why an item arrives at its subscribers, or why it does not."
    parser.epilog = EXAMPLES
    parser.add_argument("item", metavar="TOPIC|SID/RID", help="what to explain")
    parser.add_argument("--who", action="store_true", help="also which clients of a gateway hear it: asks --admin")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_naming_arguments(parser)
    add_node_arguments(parser)
    add_admin_arguments(parser)


def run(args: argparse.Namespace) -> int:
    naming = naming_of(args)
    item = item_named(args.item, naming)
    topic = _topic_of(args.item)
    said: list[str] = AdminPort(args).get("/api/topic", topic=args.item)["said"] if args.who else []

    async def work(client: Client) -> int:
        why = await client.explain(item.sid, item.rid)
        code, reason = Code(why.code), why.reason
        if code is not Code.SUCCESS and topic is not None:
            other = await _under_another_naming(client, topic, naming, why)
            if other is not None:
                code, reason = Code.SCHEME_MISMATCH, other
        zone = None
        if code is not Code.SUCCESS and topic is not None:
            zone = await _zone(client, topic, naming, published=bool(why.publishers))
        shown = _as_json if args.json else _as_text
        print(shown(item, code, reason, why, zone, said))
        return 0 if code is Code.SUCCESS else EXIT_NOT_MATCHED

    return with_node(args, work)


def _topic_of(text: str) -> Topic | None:
    """A topic of the web; other names are no part of the zones that gateways manage."""
    try:
        return Topic.parse(text) if NAMESPACES.read(text).namespace == UrlNamespace.label else None
    except TopicError:
        return None


async def _zone(client: Client, topic: Topic, naming: Naming, *, published: bool) -> str | None:
    """Whether a gateway answers for the topic's zone: why a subscription to it would be denied, or not."""
    try:
        standing = await standing_of(client, naming, zone_of(topic.host), topic)
    except NoZoneError:
        return None
    if published and not standing.managed and standing.mismatch is None:
        return f"nobody manages the zone {standing.zone}, and nobody needs to: the topic is published in the network"
    return standing.text


async def _under_another_naming(client: Client, topic: Topic, naming: Naming, why: Why) -> str | None:
    """Whether the missing side is there under ids that another scheme or hash gives the same topic."""
    for scheme in Scheme:
        for hash_name in HashName:
            other = Naming(scheme, hash_name)
            if other == naming:
                continue
            try:
                item = other.of_topic(topic)
            except NoZoneError:
                continue
            found = await client.explain(item.sid, item.rid)
            missing = []
            if found.publishers and not why.publishers:
                missing.append(f"published by {', '.join(found.publishers[:5])}")
            if found.subscribers and not why.subscribers:
                missing.append(f"subscribed to by {', '.join(found.subscribers[:5])}")
            if missing:
                return f"the topic is {' and '.join(missing)} under {other.announcement}, not {naming.announcement}"
    return None


def _as_json(item: ItemId, code: Code, reason: str, why: Why, zone: str | None, said: list[str]) -> str:
    return json.dumps(
        {
            "sid": str(item.sid),
            "rid": str(item.rid),
            "code": code.name.lower(),
            "reason": reason,
            "publishers": why.publishers,
            "subscribers": why.subscribers,
            "refusals": why.refusals,
            "zone": zone,
            "said": said,
            "unserved": {name: Code(number).name.lower() for name, number in why.unserved},
        }
    )


def _as_text(item: ItemId, code: Code, reason: str, why: Why, zone: str | None, said: list[str]) -> str:
    words = code.name.lower().replace("_", " ")
    lines = [
        f"{item}",
        f"  {reason if code is Code.SUCCESS else f'{words}: {reason}'}",
        f"  publishers   {', '.join(why.publishers) or 'none'}",
        f"  subscribers  {', '.join(why.subscribers) or 'none'}",
    ]
    lines += [f"  refused      {refusal}" for refusal in why.refusals]
    lines += [f"  not served   {name}: {Code(number).name.lower()}" for name, number in why.unserved]
    if zone is not None:
        lines.append(f"  zone         {zone}")
    lines += [f"  here         {sentence}" for sentence in said]
    return "\n".join(lines)

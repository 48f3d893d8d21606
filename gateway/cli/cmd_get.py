"""`psph get`: versions of an item of a PSIRP network, once, from the nearest node that has them."""

import argparse
import json
import re
import sys

from gateway.cli.cmd_sub import as_json
from gateway.cli.errors import CommandError
from gateway.cli.psirp import add_naming_arguments, add_node_arguments, item_named, naming_of, with_node
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion
from psirp_stack.wire.numbers import ID_BYTES

EXAMPLES = """
examples:
  psph get http://example.com/greeting                 the current version, on stdout as it is
  psph get http://example.com/greeting --last 3 --json
  psph get ::01/::02 --versions 5-9 --json             those of the publisher's 5th to 9th that somebody has
  psph get http://example.com/ --scope --json          the current version of everything in the topic's scope
  psph get ::01/:: --scope --prefix 1f2e --json        of the items there whose Rid begins with these hex digits

Nothing is subscribed to. A node with memory to spare (`cache.bytes`) has versions also when their publisher has gone.
Exit code 1 when nobody has any.
"""
EXIT_NOTHING = 1
_RANGE = re.compile(r"(\d+)(?:-(\d+))?\Z")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Get the current version of an item, or some of its versions, once, from the nearest holder."
    parser.epilog = EXAMPLES
    parser.add_argument("item", metavar="TOPIC|SID/RID", help="what to get")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=int, metavar="N", help="the last N versions")
    which.add_argument("--versions", metavar="A[-B]", help="by their numbers in the publisher's order, from 1")
    which.add_argument("--scope", action="store_true", help="the current version of each published item of the scope")
    parser.add_argument("--prefix", metavar="HEX", help="with --scope: only items whose Rid begins with these digits")
    parser.add_argument("--json", action="store_true", help="one JSON object a line; content as text, or as base64")
    add_naming_arguments(parser)
    add_node_arguments(parser)


def run(args: argparse.Namespace) -> int:
    item = item_named(args.item, naming_of(args))
    first, last = _range(args)
    prefix = _prefix(args)

    async def work(client: Client) -> int:
        count = 0
        if args.scope:
            async for version in client.get_scope(item.sid, prefix):
                count += 1
                _show(version, args.json)
        else:
            for version in await client.get_versions(item.sid, item.rid, first, last):
                count += 1
                _show(version, args.json)
        if not count:
            print("psph get: nobody is known to have it", file=sys.stderr)
        return 0 if count else EXIT_NOTHING

    return with_node(args, work)


def _range(args: argparse.Namespace) -> tuple[int, int]:
    if args.last is not None:
        if args.last < 1:
            raise CommandError(f"--last {args.last}: expected at least 1")
        return -args.last, -1
    if args.versions is None:
        return -1, -1
    found = _RANGE.match(args.versions)
    if found is None:
        raise CommandError(f"--versions {args.versions}: expected a number, or two as in 5-9")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last < 1 << 62:
        raise CommandError(f"--versions {args.versions}: numbers begin with 1, and the second is not below the first")
    return first, last


def _prefix(args: argparse.Namespace) -> bytes:
    if args.prefix is None:
        return b""
    if not args.scope:
        raise CommandError("--prefix is for the items of a scope: say --scope as well")
    try:
        prefix = bytes.fromhex(args.prefix)
    except ValueError:
        raise CommandError(f"--prefix {args.prefix}: expected pairs of hexadecimal digits") from None
    if len(prefix) > ID_BYTES:
        raise CommandError(f"--prefix: an id has 32 bytes, not {len(prefix)}")
    return prefix


def _show(version: ReceivedVersion, as_objects: bool) -> None:
    if as_objects:
        print(json.dumps(as_json(version)), flush=True)
    else:
        sys.stdout.buffer.write(version.content)
        sys.stdout.buffer.flush()

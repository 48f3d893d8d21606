"""`psph sub`: subscribe to items of a PSIRP network and print, or hand on, what is published."""

import argparse
import asyncio
import base64
import json
import os
import shlex
import sys

from gateway.cli.errors import CommandError
from gateway.cli.psirp import add_naming_arguments, add_node_arguments, item_named, naming_of, with_node
from identifiers import Identifier, IdentifierSyntaxError
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import ReceivedVersion

EXAMPLES = """
examples:
  psph sub http://example.com/greeting
  psph sub ::01/::02 --count 1 --timeout 5 > picture.png
  psph sub http://example.com/feed --json
  psph sub http://example.com/feed --exec 'wc -c'          the content is its stdin; PSPH_SID, PSPH_RID,
                                                           PSPH_VERSION and PSPH_ATTRIBUTES are set

Content goes to stdout as it is. Exit code 1 when --timeout ends before --count publications came.
"""
EXIT_TOO_FEW = 1


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the current version of items and all later ones, as they are published."
    parser.epilog = EXAMPLES
    parser.add_argument("items", nargs="+", metavar="TOPIC|SID/RID", help="what to subscribe to")
    parser.add_argument("--count", type=int, metavar="N", help="stop after N publications")
    parser.add_argument("--timeout", type=float, metavar="S", help="stop after S seconds")
    parser.add_argument("--since", metavar="VERSION", help="begin after this version, as far as it is retained")
    parser.add_argument("--future-only", action="store_true", help="leave out the current version")
    parser.add_argument("--json", action="store_true", help="one JSON object a line; content as text, or as base64")
    parser.add_argument("--exec", metavar="COMMAND", help="run this for each publication, with the content on stdin")
    add_naming_arguments(parser)
    add_node_arguments(parser)


def run(args: argparse.Namespace) -> int:
    naming = naming_of(args)
    items = [item_named(text, naming) for text in args.items]
    since = None if args.since is None else _version(args.since)
    if args.count is not None and args.count < 1:
        raise CommandError(f"--count {args.count}: expected at least 1")

    async def work(client: Client) -> int:
        taken = 0
        enough = asyncio.Event()

        async def listener(publication: ReceivedVersion) -> None:
            nonlocal taken
            if enough.is_set():
                return
            await _hand_on(publication, args)
            taken += 1
            if taken == args.count:
                enough.set()

        try:
            async with asyncio.timeout(args.timeout):
                for item in items:
                    await client.subscribe(
                        *(item.sid, item.rid, listener),
                        since=since,
                        future_only=args.future_only,
                        not_now=_say_later,
                    )
                await enough.wait()
        except TimeoutError:
            return EXIT_TOO_FEW if args.count is not None else 0
        return 0

    return with_node(args, work, endless=args.count is None)


def _say_later(reason: str) -> None:
    print(f"psph sub: {reason}; asking again", file=sys.stderr)


async def _hand_on(publication: ReceivedVersion, args: argparse.Namespace) -> None:
    if args.exec is not None:
        await _execute(publication, args.exec)
    elif args.json:
        print(json.dumps(as_json(publication)), flush=True)
    else:
        sys.stdout.buffer.write(publication.content)
        sys.stdout.buffer.flush()


async def _execute(publication: ReceivedVersion, command: str) -> None:
    environment = {
        **os.environ,
        "PSPH_SID": str(Identifier(publication.sid)),
        "PSPH_RID": str(Identifier(publication.rid)),
        "PSPH_VERSION": str(Identifier(publication.version)),
        "PSPH_ATTRIBUTES": publication.attributes.decode("utf-8", "replace").replace("\0", ""),
    }
    words = shlex.split(command)
    try:
        process = await asyncio.create_subprocess_exec(*words, stdin=asyncio.subprocess.PIPE, env=environment)
    except (OSError, IndexError) as error:
        raise CommandError(f"--exec: cannot run {command!r}: {error}") from None
    await process.communicate(publication.content)
    if process.returncode:
        print(f"psph sub: {words[0]} ended with code {process.returncode}", file=sys.stderr)


def as_json(publication: ReceivedVersion) -> dict[str, object]:
    described: dict[str, object] = {
        "sid": str(Identifier(publication.sid)),
        "rid": str(Identifier(publication.rid)),
        "version": str(Identifier(publication.version)),
        "order": publication.order,
        "published_ms": publication.published_ms,
        "bytes": len(publication.content),
        "attributes": publication.attributes.decode("utf-8", "replace"),
    }
    if publication.signer is not None:
        described["signer"] = publication.signer.hex()
    try:
        described["content"] = publication.content.decode()
    except UnicodeDecodeError:
        described["base64"] = base64.b64encode(publication.content).decode()
    return described


def _version(text: str) -> Identifier:
    try:
        return Identifier.parse(text)
    except IdentifierSyntaxError as error:
        raise CommandError(f"--since: {error}") from None

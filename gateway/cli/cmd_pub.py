"""`psph pub`: publish a file, or what comes on stdin, into a PSIRP network."""

import argparse
import asyncio
import sys
from pathlib import Path

from gateway.cli.errors import CommandError
from gateway.cli.psirp import add_naming_arguments, add_node_arguments, item_named, naming_of, with_node
from gateway.operations.ready import tell_ready
from psirp_stack.node.api import Client
from psirp_stack.node.attachment import MAX_CONTENT_BYTES

EXAMPLES = """
examples:
  echo hello | psph pub http://example.com/greeting
  psph pub http://example.com/feed feed.atom
  psph pub ::01/::02 picture.png --hold        stay, so that subscribers who come later get it too
  tail -f log | psph pub --lines ::01/::02     every line is a version

Without --hold the publication goes to those who are subscribed now, and the item is withdrawn when they have it.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Publish one version of an item, named by a topic URL, user@domain or SID/RID."
    parser.epilog = EXAMPLES
    parser.add_argument("item", metavar="TOPIC|SID/RID", help="what to publish")
    parser.add_argument("file", nargs="?", type=Path, help="its content (default: stdin)")
    parser.add_argument("--lines", action="store_true", help="publish every line of the input as a version")
    parser.add_argument("--hold", action="store_true", help="stay attached until interrupted")
    parser.add_argument("--attributes", default="", metavar="TEXT", help="travels beside the content")
    add_naming_arguments(parser)
    add_node_arguments(parser)


def run(args: argparse.Namespace) -> int:
    item = item_named(args.item, naming_of(args))
    attributes = args.attributes.encode()

    async def work(client: Client) -> int:
        if args.lines:
            loop = asyncio.get_running_loop()
            stream = sys.stdin.buffer if args.file is None else args.file.open("rb")
            while line := await loop.run_in_executor(None, stream.readline):
                version = await client.publish(item.sid, item.rid, line.rstrip(b"\n"), attributes)
                print(version, flush=True)
        else:
            print(await client.publish(item.sid, item.rid, _content(args.file), attributes), flush=True)
        if args.hold:
            tell_ready()
            await asyncio.Event().wait()
        return 0

    return with_node(args, work, endless=args.hold)


def _content(path: Path | None) -> bytes:
    try:
        stream = sys.stdin.buffer if path is None else path.open("rb")
        content = stream.read(MAX_CONTENT_BYTES + 1)
    except OSError as error:
        raise CommandError(f"{path}: cannot be read ({error.strerror})") from None
    if len(content) > MAX_CONTENT_BYTES:
        raise CommandError(f"a publication has at most {MAX_CONTENT_BYTES} bytes")
    return content

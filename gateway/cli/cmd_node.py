"""`psph node`: run one PSIRP node."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

import uvloop

from gateway.cli.errors import CommandError
from gateway.operations.garbage import spare_what_is_loaded
from gateway.operations.ready import tell_ready
from gateway.words import counted
from psirp_stack.authentication.keys import KeyFileError
from psirp_stack.graph import GraphError
from psirp_stack.node.config import NodeConfigError, NodeFile, load, read_secret
from psirp_stack.node.shell import RunningNode, memory_of
from storage import StorageError

EXAMPLES = """
examples:
  psph node -c node.toml
  psph node -c node.toml --check       only say whether the configuration can be used

node.toml:
  name = "a"
  roles = ["rendezvous", "topology"]   # every node forwards; one node of a network does each of these
  data = "var/a"                       # what must survive a restart
  socket = "var/a/node.sock"           # where psph pub, psph sub and other applications attach
  [domain]
  seed = "my network"                  # the same at all nodes: link tags follow from it
  secret_file = "domain.secret"        # made by psph keys setup: who does not know it is not let in (mode 0600)
  [[links]]
  udp = "127.0.0.1:4001"               # or: ethernet = "veth0"
  peer = "127.0.0.1:4002"
  [keys]
  signing = "a.key"                    # made by psph keys
  trusted = "trusted/"
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a node: forwarder, and rendezvous or topology manager if its file says so."
    parser.epilog = EXAMPLES
    parser.add_argument("-c", "--config", type=Path, required=True, metavar="FILE", help="the node's configuration")
    parser.add_argument("--check", action="store_true", help="check the configuration and stop")


def run(args: argparse.Namespace) -> int:
    try:
        file = load(args.config)
        if args.check:
            if file.domain.secret_file is not None:
                read_secret(args.config.parent / file.domain.secret_file)
            print(f"{args.config}: node {file.name!r} with {counted(len(file.links), 'link')} can be started")
            return 0
        memory_of(file).enforce_on_stores()
        uvloop.run(_serve(file, args.config.parent))
    except (NodeConfigError, GraphError, KeyFileError, StorageError, OSError) as error:
        raise CommandError(str(error)) from None
    return 0


async def _serve(file: NodeFile, folder: Path) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    node = await RunningNode.start(file, folder)
    try:
        for line in node.warnings:
            print(f"psph node: warning: {line}", file=sys.stderr, flush=True)
        roles = ", ".join(("forwarder", *file.roles))
        where = "" if file.socket is None else f", applications at {folder / file.socket}"
        print(f"node {file.name} is up ({roles}; {counted(len(file.links), 'link')}{where})", flush=True)
        spare_what_is_loaded()
        tell_ready()
        await stop.wait()
    finally:
        await node.close()

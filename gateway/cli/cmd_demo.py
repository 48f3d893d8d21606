"""`psph demo`: two domains, two gateways and a PSIRP network between them, in one process."""

import argparse
import asyncio
import contextlib
import signal
import tempfile
from pathlib import Path

import uvloop

from gateway.cli.errors import CommandError
from gateway.demo import NODES, Demo, DemoArrival, DemoError
from gateway.operations.ready import tell_ready
from storage import StorageError

LAST_ENTRY_PATIENCE = 5.0
CHAT_HINT = """
To chat, open both pages in a browser: choose the name bob in domain B and talk to alice@a.example,
choose alice in domain A and talk to bob@b.example. What the two of you say crosses the same network.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show a feed crossing from one domain to another. In domain B a blog writes an entry now and then and pings\n"
        "its hub; in domain A a reader has subscribed to the blog at its own hub. Between the two hubs there is\n"
        f"nothing but a PSIRP network of {NODES} nodes, and neither blog nor reader knows it.\n"
        "Both domains have a chat page as well: two people at two browsers talk over the same network.\n"
        "Ctrl-C ends it and says what crossed."
    )
    parser.epilog = (
        "examples:\n"
        "  psph demo\n"
        "  psph demo --seconds 10 --every 0.2\n"
        "  psph demo --data var/demo             keep what the gateways store\n"
        "  curl -d hub.mode=subscribe -d hub.topic=FEED -d hub.callback=URL HUB-OF-A    be one more reader"
    )
    parser.add_argument("--seconds", type=float, metavar="N", help="stop by itself after so long")
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between entries (default 1)")
    parser.add_argument("--data", type=Path, metavar="DIR", help="where to keep it all (default: a temporary place)")


def run(args: argparse.Namespace) -> int:
    if args.every <= 0:
        raise CommandError(f"--every {args.every:g}: expected seconds above 0")
    if args.seconds is not None and args.seconds <= 0:
        raise CommandError(f"--seconds {args.seconds:g}: expected seconds above 0")
    with contextlib.ExitStack() as stack:
        data = args.data
        if data is None:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-demo-")))
        try:
            return uvloop.run(_show(data, args.seconds, args.every))
        except (DemoError, StorageError, OSError) as error:
            raise CommandError(str(error)) from error


async def _show(data: Path, seconds: float | None, every: float) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if seconds is not None:
        loop.call_later(seconds, stop.set)
    async with Demo(data, _told) as demo:
        for what, address in demo.addresses.items():
            print(f"{what:<17} {address}")
        for domain, address in demo.dashboards.items():
            print(f"{domain}, look    {address}")
        print(f"between them      {NODES} PSIRP nodes in a line")
        print(CHAT_HINT, flush=True)
        tell_ready()
        last = 0
        while not stop.is_set():
            last = await demo.write()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every)
        with contextlib.suppress(TimeoutError):
            if last:
                await asyncio.wait_for(demo.arrival(last), LAST_ENTRY_PATIENCE)
        print("", *demo.summary.lines(), sep="\n", flush=True)
        return 0 if demo.summary.arrived else 1


def _told(arrival: DemoArrival) -> None:
    milliseconds = arrival.delay * 1000
    print(
        f"entry {arrival.number:>4} reached domain A after {milliseconds:6.1f} ms ({arrival.size:,} bytes)", flush=True
    )

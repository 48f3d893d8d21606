"""What the commands of PSIRP users share: naming an item, and attaching to a node."""

import argparse
import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from gateway.cli.errors import CommandError
from gateway.cli.names import NAMESPACES
from identifiers import HashName, IdentifierSyntaxError, ItemId, Naming, Scheme, TopicError
from psirp_stack.node.api import Client, NotAttachedError, PsirpError

SOCKET_VARIABLE = "PSPH_SOCKET"
DEFAULT_SOCKET = "var/node.sock"
EXIT_BY_SIGNAL = 128
"""Plus the signal's number, as shells have it."""


def add_node_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--socket",
        type=Path,
        default=Path(os.environ.get(SOCKET_VARIABLE, DEFAULT_SOCKET)),
        help=f"the node to attach to (default: ${SOCKET_VARIABLE}, or {DEFAULT_SOCKET})",
    )


def add_naming_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--scheme", choices=[*Scheme], default=Scheme.FQDN_PATH, help="how a topic URL becomes ids")
    parser.add_argument("--hash", choices=[*HashName], default=HashName.SHA1, help="which hash makes the ids")


def item_named(text: str, naming: Naming) -> ItemId:
    """The item that a person names by topic URL, `user@domain`, `mqtt://domain/topic` or `sid/rid`."""
    try:
        return NAMESPACES.read(text).item(naming) if NAMESPACES.of(text) is not None else ItemId.parse(text)
    except (TopicError, IdentifierSyntaxError) as error:
        raise CommandError(f"{text[:100]}: {error}") from None


def naming_of(args: argparse.Namespace) -> Naming:
    return Naming(Scheme(args.scheme), HashName(args.hash))


def with_node(args: argparse.Namespace, work: Callable[[Client], Awaitable[int]], *, endless: bool = False) -> int:
    """Attach to the node, do the work, detach; what the network refuses becomes one line.

    SIGTERM and SIGINT end the work and detach. That is how an `endless` command is meant to end, so it says 0 then.
    """
    interrupted = 0

    async def attached() -> int:
        async with await Client.attach(args.socket, application=f"psph {os.getpid()}") as client:
            working = asyncio.ensure_future(work(client))

            def stop(number: int) -> None:
                nonlocal interrupted
                interrupted = number
                working.cancel()

            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, stop, number)
            try:
                return await working
            except asyncio.CancelledError:
                if not interrupted:
                    raise
                return 0 if endless else EXIT_BY_SIGNAL + interrupted

    try:
        return asyncio.run(attached())
    except NotAttachedError as error:
        raise CommandError(str(error)) from None
    except PsirpError as error:
        raise CommandError(f"{error}") from None

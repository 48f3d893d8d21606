"""The dispatcher behind `psph`: finds the command's module, parses its arguments, runs it.

A command is a module `gateway/cli/cmd_NAME.py` with two functions:

    configure(parser)     declare arguments on an `argparse.ArgumentParser`; its text is what `--help` teaches
    run(args) -> int      do the work and return the exit code

and a line in `COMMANDS`. One for people who work on the project is `trials/cli/cmd_NAME.py` and a line in `TRIALS`.
Only the module of the command that was asked for is imported, so that a light command starts quickly and does not need
the libraries of a heavy one.

Exit codes: 0 done, 1 the work failed, 2 the request was wrong (one line on stderr says how).
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import cast

from gateway import __version__
from gateway.cli.errors import CommandError
from gateway.operations.ready import HELP, OPTION, run_in_background

COMMANDS: dict[str, str] = {
    "backup": "copy the stores of a gateway, hub or node while it runs",
    "bench": "run a benchmark and print its table and bars",
    "capture": "write the PSIRP frames of an interface to a capture file",
    "config": "check the configuration of a gateway, or print an example",
    "demo": "show a feed crossing between two domains, all in one process",
    "discover": "show the gateways of a domain in the order they would be tried",
    "dissect": "show the PSIRP frames of a capture file",
    "doctor": "look for what keeps a gateway from working, and say how to fix it",
    "explain": "say why an item does not arrive",
    "feed": "serve a feed that writes an entry now and then, to try things out",
    "gateway": "run a gateway: a hub joined to a PSIRP network",
    "get": "get versions of an item of a PSIRP network, once",
    "hub": "run the WebSub hub alone",
    "id": "show the PSIRP identifiers of topic URLs",
    "keys": "make and keep the keys that sign publications",
    "mqtt": "run the MQTT broker alone",
    "net": "run a whole PSIRP network on this machine, and look at it",
    "node": "run a PSIRP node",
    "predict": "what latency and success should be, from traces or a description; which queue fills first",
    "pub": "publish into a PSIRP network",
    "push": "subscribe, unsubscribe and publish at any hub",
    "report": "analyse the traces of runs: tables, plots, one HTML file",
    "restore": "bring a backup back",
    "sessions": "show who is subscribed at a gateway, by every protocol, and manage it",
    "sub": "subscribe to items of a PSIRP network",
    "traces": "put the files of traced runs together, exchange spans with other tools",
    "version": "say which psph this is, and what it stands on",
}

TRIALS: dict[str, str] = {
    "attack": "attack real processes and measure what an innocent user feels",
    "crash": "kill -9 a part again and again and count what it lost",
    "fuzz": "feed mutated frames to the parsers, or hostile requests to a hub",
}
"""Their package comes with a checkout, and neither with the wheel nor in the image."""

SERVERS = frozenset({"demo", "feed", "gateway", "hub", "mqtt", "net", "node", "pub"})
"""Commands that go on until they are stopped: they can go to the background and say when they are ready."""

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Command:
    """The two functions every command module offers."""

    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def installed() -> dict[str, str]:
    """The commands that can be run here, with what they do."""
    return COMMANDS | TRIALS if find_spec("trials") else COMMANDS


def load(name: str) -> Command:
    if name not in installed():
        raise CommandError("is for work on psph itself: run it in a checkout (make test sets one up)")
    module = importlib.import_module(f"{'trials' if name in TRIALS else 'gateway'}.cli.cmd_{name}")
    return Command(cast("Callable[..., None]", module.configure), cast("Callable[..., int]", module.run))


def overview() -> str:
    commands = installed()
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {text}" for name, text in sorted(commands.items())]
    return "\n".join(["commands:", *lines, "", "`psph COMMAND --help` explains one of them with examples."])


def top_level_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="psph",
        description="The Pub/Sub Proxy Hub joins WebSub on the web to a PSIRP information-centric network.",
        epilog=overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"psph {__version__}")
    parser.add_argument("command", metavar="COMMAND", choices=sorted(COMMANDS | TRIALS), help="what to do")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    chosen = top_level_parser().parse_args(argv)
    parser = argparse.ArgumentParser(
        prog=f"psph {chosen.command}",
        description=(COMMANDS | TRIALS)[chosen.command],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    try:
        if chosen.command in SERVERS and OPTION in chosen.arguments:
            return run_in_background()
        command = load(chosen.command)
        command.configure(parser)
        if chosen.command in SERVERS:
            parser.add_argument(OPTION, action="store_true", help=HELP)
        code = command.run(parser.parse_args(chosen.arguments))
        sys.stdout.flush()
    except CommandError as error:
        print(f"psph {chosen.command}: {error}", file=sys.stderr)
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader (`| head`) went away: nothing is wrong, but the flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return code


if __name__ == "__main__":
    sys.exit(main())

"""`psph id NAME...`: show what an item is called in PSIRP, and every other way to write its name."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from gateway.cli.admin_port import AdminPort, add_admin_arguments
from gateway.cli.errors import CommandError
from gateway.cli.names import NAMESPACES
from identifiers import HashName, Naming, NoZoneError, Scheme, TopicError, zone_of

EXAMPLES = """
examples:
  psph id http://rss.dit.upm.es/datagisai_feedstest
  psph id --scheme zone --json http://news.feedspsirp.com/a
  psph id alice@psirpnetwork.com
  psph id mqtt://home.example/kitchen/temp
  psph id ::5a910861145757d9d2971e73f7d75863d563c968/::df262e3a401c37a2e43f3627653cd71c8dd8fbf5
  psph id < urls.txt
  psph id --reverse ::5a910861145757d9d2971e73f7d75863d563c968/::df262e3a401c37a2e43f3627653cd71c8dd8fbf5
  psph id --below rss.dit.upm.es

An id says no name: --reverse asks a gateway by which names it knows the item, and --below which names it has come
across at or below a domain or an address. Exit code 1: it knows none.

A name that cannot be one gives one line on stderr; the others are still printed, and the exit code is 2.
"""


@dataclass(frozen=True, slots=True)
class NameDescription:
    """What is known of one name. The signalling ids are missing for hosts that belong to no zone."""

    input: str
    canonical: str
    scheme: str
    hash: str
    sid: str
    rid: str
    signalling_sid: str | None
    signalling_rid: str | None
    namespace: str
    spellings: tuple[str, ...]
    """Every way to write it; the canonical one is the first."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print what a topic URL, user@domain or pair of ids names: its PSIRP ids, and every spelling."
    parser.epilog = EXAMPLES
    parser.add_argument("names", nargs="*", metavar="NAME", help="names; without any, they are read from stdin")
    parser.add_argument("--scheme", choices=[*Scheme], default=Scheme.FQDN_PATH, help="how a URL is divided into ids")
    parser.add_argument("--hash", choices=[*HashName], default=HashName.SHA1, help="which hash makes the ids")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    known = parser.add_mutually_exclusive_group()
    known.add_argument("--reverse", action="store_true", help="names that a gateway knows of these ids")
    known.add_argument("--below", metavar="PLACE", help="names that a gateway knows below a domain or an address")
    add_admin_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.below is not None:
        return _print_names(AdminPort(args).get("/api/names", below=args.below))
    naming = Naming(Scheme(args.scheme), HashName(args.hash))
    if not args.names and sys.stdin.isatty():
        raise CommandError("no name given: say one, or pipe names into stdin (see psph id --help)")
    code = 0
    for name in args.names or _lines_of_stdin():
        try:
            description = describe(name, naming)
        except TopicError as error:
            print(f"psph id: {name[:100]}: {error}", file=sys.stderr)
            code = 2
            continue
        if args.reverse:
            item = f"{description.sid}/{description.rid}"
            code = max(code, _print_names(AdminPort(args).get("/api/names", item=item)))
        else:
            print(json.dumps(asdict(description)) if args.json else _as_text(description))
    return code


def _print_names(names: list[str]) -> int:
    for name in names:
        print(name)
    return 0 if names else 1


def describe(name: str, naming: Naming) -> NameDescription:
    read = NAMESPACES.read(name)
    item = read.item(naming)
    try:
        signalling = naming.of_signalling(zone_of(read.host)) if read.host else None
    except NoZoneError:
        signalling = None
    return NameDescription(
        input=name,
        canonical=read.shown,
        scheme=naming.scheme,
        hash=naming.hash_name,
        sid=str(item.sid),
        rid=str(item.rid),
        signalling_sid=None if signalling is None else str(signalling.sid),
        signalling_rid=None if signalling is None else str(signalling.rid),
        namespace=read.namespace,
        spellings=NAMESPACES.spellings(read, naming),
    )


def _lines_of_stdin() -> Iterator[str]:
    for line in sys.stdin:
        if name := line.strip():
            yield name


def _as_text(description: NameDescription) -> str:
    signalling = "none: it belongs to no zone"
    also = "".join(f"\n  also        {spelling}" for spelling in description.spellings[1:])
    if description.signalling_sid is not None:
        signalling = f"{description.signalling_sid}/{description.signalling_rid}"
    return (
        f"{description.canonical}\n"
        f"  scheme      {description.scheme} ({description.hash})\n"
        f"  Sid         {description.sid}\n"
        f"  Rid         {description.rid}\n"
        f"  signalling  {signalling}{also}"
    )

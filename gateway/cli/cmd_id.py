"""`psph id URL...`: show what a topic is called in PSIRP."""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from gateway.cli.errors import CommandError
from identifiers import HashName, Naming, NoZoneError, Scheme, Topic, TopicError, split_user, zone_of

EXAMPLES = """
examples:
  psph id http://rss.dit.upm.es/datagisai_feedstest
  psph id --scheme zone --json http://news.feedspsirp.com/a
  psph id alice@psirpnetwork.com
  psph id < urls.txt

A URL that cannot be a topic gives one line on stderr; the others are still printed, and the exit code is 2.
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


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the canonical form of topic URLs (or user@domain addresses) and their PSIRP ids."
    parser.epilog = EXAMPLES
    parser.add_argument("names", nargs="*", metavar="URL", help="topic URLs; without any, they are read from stdin")
    parser.add_argument("--scheme", choices=[*Scheme], default=Scheme.FQDN_PATH, help="how a URL is divided into ids")
    parser.add_argument("--hash", choices=[*HashName], default=HashName.SHA1, help="which hash makes the ids")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


def run(args: argparse.Namespace) -> int:
    naming = Naming(Scheme(args.scheme), HashName(args.hash))
    if not args.names and sys.stdin.isatty():
        raise CommandError("no URL given: name one, or pipe URLs into stdin (see psph id --help)")
    code = 0
    for name in args.names or _lines_of_stdin():
        try:
            description = describe(name, naming)
        except TopicError as error:
            print(f"psph id: {name[:100]}: {error}", file=sys.stderr)
            code = 2
            continue
        print(json.dumps(asdict(description)) if args.json else _as_text(description))
    return code


def describe(name: str, naming: Naming) -> NameDescription:
    if "://" not in name and "@" in name:
        item = naming.of_user(name)
        user, host = split_user(name)
        canonical = f"{user}@{host}"
    else:
        topic = Topic.parse(name)
        item = naming.of_topic(topic)
        canonical, host = topic.url, topic.host
    try:
        signalling = naming.of_signalling(zone_of(host))
    except NoZoneError:
        signalling = None
    return NameDescription(
        input=name,
        canonical=canonical,
        scheme=naming.scheme,
        hash=naming.hash_name,
        sid=str(item.sid),
        rid=str(item.rid),
        signalling_sid=None if signalling is None else str(signalling.sid),
        signalling_rid=None if signalling is None else str(signalling.rid),
    )


def _lines_of_stdin() -> Iterator[str]:
    for line in sys.stdin:
        if name := line.strip():
            yield name


def _as_text(description: NameDescription) -> str:
    signalling = "none: the host belongs to no zone"
    if description.signalling_sid is not None:
        signalling = f"{description.signalling_sid}/{description.signalling_rid}"
    return (
        f"{description.canonical}\n"
        f"  scheme      {description.scheme} ({description.hash})\n"
        f"  Sid         {description.sid}\n"
        f"  Rid         {description.rid}\n"
        f"  signalling  {signalling}"
    )

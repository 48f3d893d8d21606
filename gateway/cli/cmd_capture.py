"""`psph capture`: write PSIRP frames from an interface, a node's links or another capture to a pcap file."""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from gateway.cli.errors import CommandError
from identifiers import DEFAULT_NAMING, Identifier, ItemId, Topic

if TYPE_CHECKING:  # importing the packet tools takes scapy, which only this command needs
    from psirp_stack.tools.capture import CaptureCounts, TopicFilter
    from psirp_stack.tools.pcap import Record

DEFAULT_COUNT = 1_000_000
MAX_PORT = 65_535


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Write PSIRP frames to a pcap file that `psph dissect`, Wireshark and tcpdump read. An interface is read\n"
        "through a packet socket, which needs root or CAP_NET_RAW. Links of any kind, also inside a process, are read\n"
        "through the tap of their node, which needs only the same user. Ends at --count, --duration or Ctrl-C."
    )
    parser.epilog = """\
examples:
  psph capture veth0 --out trace.pcap --duration 10
  psph capture lo --udp-port 55555 --out trace.pcap --count 100
  psph capture --tap /run/psph/node.tap --out trace.pcap --duration 10
  psph capture --read trace.pcap --out one-topic.pcap --topic http://news.example/feed
  psph capture --read trace.pcap --out one-topic.pcap --id ::0a0b0c/::0d
  psph capture veth0 --out - | wireshark -k -i -

Ids are hex digits, two a byte, and `::` stands for zero bytes. A frame belongs to a topic when its rendezvous or
metadata header names it. Frames inside UDP are written behind an Ethernet header, so all captures look alike; those
of a tap have addresses that say the link and the way: 02:00:LL:LL:00:01 is the node on its link LL:LL (hex),
02:00:LL:LL:00:02 the neighbour there."""
    parser.add_argument("interface", nargs="?", metavar="INTERFACE", help="network interface to read, such as veth0")
    parser.add_argument("--tap", type=Path, metavar="PATH", help="listen where a node's configuration says `tap`: PATH")
    parser.add_argument("--read", type=Path, metavar="FILE", help="take the frames of this capture file instead")
    parser.add_argument("--out", required=True, metavar="FILE", help="pcap file to write, `-` for standard output")
    parser.add_argument("--udp-port", type=int, metavar="PORT", help="take frames carried in UDP from or to PORT")
    topic = parser.add_argument_group("only one topic (one way of saying which)")
    topic.add_argument("--topic", metavar="URL", help="the topic's URL")
    topic.add_argument("--id", metavar="SID/RID", help="its scope id and rendezvous id")
    topic.add_argument("--sid", metavar="HEX", help="its scope id only")
    topic.add_argument("--rid", metavar="HEX", help="its rendezvous id only")
    parser.add_argument(
        "--count", type=int, default=DEFAULT_COUNT, metavar="N", help=f"end after N frames (default {DEFAULT_COUNT:,})"
    )
    parser.add_argument("--duration", type=float, metavar="SECONDS", help="end after this time (default: no end)")


def run(args: argparse.Namespace) -> int:
    check(args)
    try:
        from psirp_stack.tools.capture import CaptureCounts
    except ImportError as error:
        raise CommandError(f"{error}: install the packet tools (psph[tools])") from error
    wanted = topic_filter(args)
    counts = CaptureCounts()
    source = from_file if args.read is not None else from_tap if args.tap is not None else from_interface
    code = source(args, wanted, counts)
    print(
        f"{counts.written} frames written, {counts.filtered_out} of other topics, {counts.other_protocol} of other"
        f" protocols, {counts.lost_in_kernel} lost before they could be read",
        file=sys.stderr,
    )
    return code


def check(args: argparse.Namespace) -> None:
    if sum(given is not None for given in (args.interface, args.read, args.tap)) != 1:
        raise CommandError("give one of INTERFACE, --tap PATH and --read FILE")
    if args.count < 1:
        raise CommandError(f"--count takes a number from 1 up, not {args.count}")
    if args.duration is not None and not args.duration > 0:
        raise CommandError(f"--duration takes seconds above 0, not {args.duration:g}")
    if args.udp_port is not None and not 1 <= args.udp_port <= MAX_PORT:
        raise CommandError(f"--udp-port takes 1 to {MAX_PORT}, not {args.udp_port}")
    if args.udp_port is not None and args.interface is None:
        raise CommandError("--udp-port goes with an INTERFACE")
    if args.read is not None and args.duration is not None:
        raise CommandError("--duration does not go with --read")
    if args.read is not None and args.read.exists() and Path(args.out).exists() and args.read.samefile(args.out):
        raise CommandError(f"--out {args.out} is the file that is read")


def topic_filter(args: argparse.Namespace) -> "TopicFilter":
    from psirp_stack.tools.capture import TopicFilter

    ways = [args.topic is not None, args.id is not None, args.sid is not None or args.rid is not None]
    if sum(ways) > 1:
        raise CommandError("say the topic in one way: --topic, --id, or --sid and --rid")
    try:
        if args.topic is not None:
            item = DEFAULT_NAMING.of_topic(Topic.parse(args.topic))
        elif args.id is not None:
            item = ItemId.parse(args.id)
        else:
            return TopicFilter(parsed_id(args.sid), parsed_id(args.rid))
    except ValueError as error:
        raise CommandError(str(error)) from error
    return TopicFilter(bytes(item.sid), bytes(item.rid))


def parsed_id(text: str | None) -> bytes | None:
    return None if text is None else bytes(Identifier.parse(text))


def from_file(args: argparse.Namespace, wanted: "TopicFilter", counts: "CaptureCounts") -> int:
    from psirp_stack.tools.capture import capture
    from psirp_stack.tools.pcap import PcapError, PcapWriter, read_pcap

    try:
        source = args.read.open("rb")
    except OSError as error:
        raise CommandError(f"{args.read}: {error.strerror}") from error
    with source, opened_output(args.out) as out:
        try:
            capture(read_pcap(source), PcapWriter(out), wanted, args.count, counts)
        except PcapError as error:
            print(f"psph capture: {args.read}: {error}", file=sys.stderr)
            return 1
    return 0


def from_interface(args: argparse.Namespace, wanted: "TopicFilter", counts: "CaptureCounts") -> int:
    from psirp_stack.tools.capture import InterfaceCapture

    try:
        source = InterfaceCapture(args.interface, args.udp_port)
    except PermissionError as error:
        raise CommandError("reading an interface needs root or CAP_NET_RAW; try again with sudo") from error
    except OSError as error:
        raise CommandError(f"interface {args.interface}: {error.strerror}") from error
    with source:
        code = record_live(args, source.records(time.time_ns, deadline_of(args)), args.interface, wanted, counts)
        counts.lost_in_kernel = source.lost()
    return code


def from_tap(args: argparse.Namespace, wanted: "TopicFilter", counts: "CaptureCounts") -> int:
    from psirp_stack.tools.tap import TapCapture

    try:
        source = TapCapture(args.tap)
    except OSError as error:
        raise CommandError(f"tap {args.tap}: {error.strerror}") from error
    with source:
        return record_live(args, source.records(deadline_of(args)), str(args.tap), wanted, counts)


def deadline_of(args: argparse.Namespace) -> Callable[[], bool]:
    end = None if args.duration is None else time.monotonic() + args.duration
    return lambda: end is not None and time.monotonic() >= end


def record_live(
    args: argparse.Namespace,
    records: "Iterator[Record]",
    source: str,
    wanted: "TopicFilter",
    counts: "CaptureCounts",
) -> int:
    from psirp_stack.tools.capture import capture
    from psirp_stack.tools.pcap import PcapWriter

    with opened_output(args.out) as out:
        writer = PcapWriter(out)
        print(f"capturing on {source}", file=sys.stderr, flush=True)
        # Ctrl-C is how a person ends a capture: the frames so far are in the file.
        with contextlib.suppress(KeyboardInterrupt):
            try:
                capture(records, writer, wanted, args.count, counts)
            except BrokenPipeError:
                raise
            except OSError as error:
                print(f"psph capture: {source}: {error.strerror}", file=sys.stderr)
                return 1
    return 0


@contextlib.contextmanager
def opened_output(name: str) -> Iterator[IO[bytes]]:
    if name == "-":
        yield sys.stdout.buffer
        return
    try:
        file = Path(name).open("wb")  # noqa: SIM115  # closed below
    except OSError as error:
        raise CommandError(f"--out {name}: {error.strerror}") from error
    with file:
        yield file

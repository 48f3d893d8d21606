"""The kinds of `psph fuzz` above the wire of PSIRP: control plane, whole nodes, attachments; and the MQTT broker."""

import argparse
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.cli.errors import CommandError
from perf.bench.family import progress_bar

if TYPE_CHECKING:  # importing the packet tools takes scapy, which only this command needs
    from collections.abc import Iterator

    from trials.fuzz.wire import FuzzReport, Target

KINDS = ("links", "control", "node", "attachment", "mqtt")
DESCRIPTION = """
links       sealed links: offers of the handshake, sealed frames, sessions in use, ends without a neighbour
control     payloads of the control plane: messages, courier, link state, control frames, topology manager
node        whole nodes of a working network: everything that arrives by a link, transport included
attachment  what applications and nodes say to each other
mqtt        packets of clients of every version, for the broker and its codec
"""


def fuzz_psirp(args: argparse.Namespace) -> "FuzzReport":
    """Run one of `KINDS` as the command's arguments say."""
    if args.frames < 1:
        raise CommandError(f"--frames takes a number from 1 up, not {args.frames}")
    if args.target:
        raise CommandError(f"--target is for `wire`; `{args.what}` always has all of its targets")
    try:
        from trials.fuzz.node import fuzz_from
    except ImportError as error:
        raise CommandError(f"{error}: install the packet tools (psph[tools])") from error
    with ExitStack() as stack:
        targets, source = _targets(args.what, args.seed, stack)
        with progress_bar("fuzzing", args.frames) as tick:
            return fuzz_from(source, targets, args.frames, args.seed, lambda done: tick("frames", done))


def _targets(what: str, seed: int, stack: ExitStack) -> "tuple[dict[str, Target], Iterator[bytes]]":
    """The targets of one kind, and where their bytes come from."""
    from trials.fuzz import control as fuzz_control
    from trials.fuzz import node as fuzz_node
    from trials.fuzz.links import FuzzedLinks
    from trials.fuzz.mqtt import FuzzedBroker

    rng = random.Random(seed)  # noqa: S311  # repeatable on purpose
    match what:
        case "links":
            links = FuzzedLinks(seed)
            return links.targets(), links.hostile()
        case "control":
            return fuzz_control.control_targets(rng), fuzz_control.hostile_payloads(rng)
        case "mqtt":
            broker = FuzzedBroker(seed)
            return broker.targets(), broker.hostile()
        case "attachment":
            return fuzz_node.attachment_targets(), fuzz_node.spoilt(fuzz_node.attachment_seeds(), rng)
        case _:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="psph-fuzz-"))
            network = fuzz_node.FuzzedNetwork(Path(folder), seed)
            stack.callback(network.close)
            targets = {name: network.target(name) for name in ("n0", "n1", "n2")}
            targets["application"] = network.application()
            return targets, fuzz_node.spoilt([*network.seeds, *fuzz_node.attachment_seeds() * 2], rng)

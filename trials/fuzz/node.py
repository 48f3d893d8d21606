"""Feed hostile bytes to whole nodes and to what applications and nodes say to each other.

Targets are functions from bytes to a short reason, as in `trials.fuzz.wire`. Seeds are what a small network said
while it worked: control frames, transport frames of both directions, and attachment messages; most are spoilt.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from identifiers import Identifier, ItemId
from psirp_stack.emulation.simulation import SimulatedNetwork
from psirp_stack.graph import Graph
from psirp_stack.node import attachment
from psirp_stack.node.attachment import Attach, AttachmentError, Unframer, framed, read_request, read_told
from trials.fuzz.wire import (
    MAX_FAILURES_KEPT,
    PROGRESS_EVERY,
    WARM_UP_FRAMES,
    FuzzFailure,
    FuzzReport,
    Target,
    resident_bytes,
)

STEERING = (0, 1, 2, 3, 4, 5, 6, 7, 0x7F, 0x80, 0x90, 0x93, 0xC0, 0xC4, 0xCF, 0xDC, 0xF0, 0xFF)
"""Bytes that mean something to one of the parsers."""
SMALL_LIMIT = 64 * 1024
FRAMES_A_STEP = 20
STEP_SECONDS = 0.05
LIFE = 5_000
"""Frames after which the fuzzed network is made anew: a forged boot number silences a node for good, rightly so."""
ITEM = ItemId(Identifier(b"\x05" * 32), Identifier(b"\x06" * 32))


def fuzz_from(
    source: Iterator[bytes],
    targets: Mapping[str, Target],
    count: int,
    seed: int,
    progress: Callable[[int], None] = lambda done: None,
) -> FuzzReport:
    """Give the first `count` of a source to every target, as `fuzz` does with frames that it makes itself."""
    report = FuzzReport(seed, reasons={name: Counter() for name in targets})
    for data in islice(source, count):
        for name, target in targets.items():
            try:
                reason = target(data)
            except Exception as error:  # that this never happens is what the run is to show
                reason = f"raised {type(error).__name__}"
                report.failed += 1
                if len(report.failures) < MAX_FAILURES_KEPT:
                    report.failures.append(FuzzFailure(name, data, f"{type(error).__name__}: {error}"))
            report.reasons[name][reason] += 1
        report.frames += 1
        if report.frames == min(WARM_UP_FRAMES, count):
            report.memory_before = resident_bytes()
        if report.frames % PROGRESS_EVERY == 0:
            progress(PROGRESS_EVERY)
    report.memory_after = resident_bytes()
    return report


def attachment_targets() -> dict[str, Target]:
    return {"requests": _requests, "answers": _answers, "stream": _stream_target()}


def _requests(data: bytes) -> str:
    try:
        return type(read_request(data)).__name__
    except AttachmentError:
        return "refused"


def _answers(data: bytes) -> str:
    try:
        return type(read_told(data)).__name__
    except AttachmentError:
        return "refused"


def _stream_target() -> Target:
    """A connection that gets everything behind everything; it is cut off when a length is beyond the bound."""
    unframer = Unframer(SMALL_LIMIT)

    def target(data: bytes) -> str:
        nonlocal unframer
        try:
            bodies = unframer.feed(data)
        except AttachmentError:
            unframer = Unframer(SMALL_LIMIT)
            return "cut off"
        if any(len(body) > SMALL_LIMIT for body in bodies):
            raise AssertionError("a body beyond the bound")
        return "messages" if bodies else "waiting"

    return target


class FuzzedNetwork:
    """Three nodes that publish and subscribe while frames that nobody sent arrive at each of them."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder = folder
        self._seed = seed
        self._count = 0
        self.seeds: list[bytes] = []
        self._network = self._make()

    def close(self) -> None:
        self._network.close()

    def target(self, name: str) -> Target:
        """Everything arrives at this node: n0 publishes and is the rendezvous, n1 forwards, n2 subscribes."""

        def target(data: bytes) -> str:
            self._step()
            node = self._network.nodes[name]
            before = self._drops(name)
            node.receive(min(node.links), [data], self._network.clock.now())
            self._network.wake(name)
            after = self._drops(name)
            return next((reason for reason, count in after.items() if count > before.get(reason, 0)), "taken")

        return target

    def application(self) -> Target:
        """An application that says anything that can be decoded."""
        attached = self._network.nodes["n2"].attach("fuzzed", lambda told: None)

        def target(data: bytes) -> str:
            nonlocal attached
            self._step()
            node, now = self._network.nodes["n2"], self._network.clock.now()
            if attached not in node.request_table.applications:
                attached = node.attach("fuzzed", lambda told: None)
            try:
                request = read_request(data)
            except AttachmentError:
                return "refused"
            if isinstance(request, Attach) or attached is None:
                return "not asked"
            node.ask(attached, request, now)
            self._network.wake("n2")
            return type(request).__name__

        return target

    def _drops(self, name: str) -> dict[str, int]:
        node = self._network.nodes[name]
        counted = (node.forwarder.statistics.drops, node.control_drops, node.courier.drops, node.drops)
        return {str(reason): count for drops in counted for reason, count in drops.items()}

    def _step(self) -> None:
        self._count += 1
        if self._count % LIFE == 0:
            self._network.close()
            self._network = self._make()
        elif self._count % FRAMES_A_STEP == 0:
            self._network.run(STEP_SECONDS)

    def _make(self) -> SimulatedNetwork:
        folder = self._folder / str(self._count)
        folder.mkdir()
        graph = Graph.from_edges(["n0", "n1", "n2"], [(0, 1), (1, 2)])
        heard: list[bytes] = []
        network = SimulatedNetwork(graph, folder, seed=self._seed, tap=lambda _, __, frame: heard.append(frame))
        network.run(2.0)
        publisher, subscriber = network.application("n0"), network.application("n2")
        subscriber.subscribe(ITEM)
        for number in range(4):
            publisher.publish(ITEM, b"%d" % number * 2000)
            network.run(0.5)
        self.seeds = heard[-400:]
        return network


def attachment_seeds() -> list[bytes]:
    """One of each message, as it stands on the wire and without its length."""
    sid, rid = bytes(ITEM.sid), bytes(ITEM.rid)
    said: list[attachment.Request | attachment.Told] = [
        Attach(attachment.PROTOCOL_VERSION, "seed"),
        attachment.LocalPublishScope(1, sid, bytes(32), None),
        attachment.LocalUnpublishScope(2, sid, bytes(32)),
        attachment.LocalSubscribeScope(3, sid),
        attachment.LocalUnsubscribeScope(4, sid),
        attachment.Publish(5, sid, rid, b"content", b"attributes"),
        attachment.Advertise(6, sid, rid),
        attachment.Withdraw(7, sid, rid),
        attachment.Subscribe(8, sid, rid, bytes(32), True),
        attachment.Unsubscribe(9, sid, rid),
        attachment.AskExplanation(10, sid, rid),
        attachment.AskStatus(11),
        attachment.Consumed(sid, rid, 7),
        attachment.Done(1, 0, "", bytes(32)),
        attachment.ReceivedVersion(sid, rid, bytes(32), 1, 2, 3, b"attributes", b"content", None),
        attachment.Skipped(sid, rid, 1, "why"),
        attachment.ScopeChanged(sid, rid, True, False),
        attachment.ServingChanged(sid, rid, "n0", 0),
        attachment.NodeStatus(1, "{}"),
        attachment.DemandChanged(sid, rid, True),
    ]
    whole = [framed(message) for message in said]
    return whole + [message[attachment.LENGTH.size :] for message in whole] * 3


def spoilt(seeds: Sequence[bytes], rng: random.Random) -> Iterator[bytes]:
    """Without end: some seeds untouched, most changed in a few places, cut or spliced, some noise."""
    while True:
        data = bytearray(rng.choice(seeds))
        choice = rng.random()
        if choice < 0.1:
            pass
        elif choice < 0.6:
            for _ in range(rng.randint(1, 5)):
                at = rng.randrange(len(data))
                data[at] = rng.choice(STEERING) if rng.random() < 0.6 else data[at] ^ (1 << rng.randrange(8))
        elif choice < 0.75:
            del data[rng.randrange(len(data)) :]
        elif choice < 0.9:
            other = rng.choice(seeds)
            data[rng.randrange(len(data)) :] = other[rng.randrange(len(other)) :]
        else:
            data = bytearray(rng.randbytes(rng.randrange(1, 600)))
        yield bytes(data)

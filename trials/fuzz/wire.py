"""Feed hostile frames to whatever takes frames: count every one under a reason, let no exception out, keep memory flat.

A target is a function from bytes to a short reason («parsed», «refused: ...», «no link matches»). A target that raises
has failed; the frame is kept as hex so that it can become a test. Frames come from a seeded generator, so a run can be
repeated exactly.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count, islice
from pathlib import Path
from typing import Any

from scapy.packet import fuzz as scapy_fuzz

from psirp_stack.forwarder import Forwarder
from psirp_stack.forwarding_model import (
    BROADCAST_FID,
    FILTER_BITS,
    FILTER_BYTES,
    TABLES,
    TAG_BITS,
    Decision,
    Drop,
    ForwardingTable,
    LinkNumber,
    Tags,
)
from psirp_stack.tools.layers import CHAINED, PSIRPAuthentication, PSIRPForwarding, PSIRPMetadata, PSIRPRendezvous
from psirp_stack.tools.reference import reference_decision
from psirp_stack.wire.codec import WireError, build, parse
from psirp_stack.wire.numbers import FID_OFFSET, FORWARDING_BYTES, PROTO_OFFSETS, PROTOCOL_VERSION, HeaderType

Target = Callable[[bytes], str]
Decide = Callable[[bytes, LinkNumber | None], Decision]
"""A forwarder with `fuzz_table()` loaded: frame and arrival link in, decision out."""

MAX_FRAME_BYTES = 1_500
MAX_FAILURES_KEPT = 20
SEED_FRAMES = 400
"""What mutations start from."""
HYPOTHESIS_FRAMES = 200
"""And these besides."""
WARM_UP_FRAMES = 2_000
"""Memory is first measured after these, when caches and pools have been filled."""
FLAT_BYTES = 16 * 1024 * 1024
"""Growth up to this is noise of the allocator."""
LINKS = 8
FUZZ_CACHE_ENTRIES, FUZZ_LOOP_ENTRIES = 64, 16
FUZZ_TICK_SECONDS = 0.001
"""Time that passes from frame to frame: memories of loops end within the run."""
PROGRESS_EVERY = 1_000
RENDEZVOUS = tuple(layer for layer in CHAINED if issubclass(layer, PSIRPRendezvous))


@dataclass(frozen=True, slots=True)
class FuzzFailure:
    """A frame that made a target raise."""

    target: str
    frame: bytes
    error: str


@dataclass(slots=True)
class FuzzReport:
    """What a run found. Each target's counts add up to `frames`."""

    seed: int
    frames: int = 0
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    failed: int = 0
    failures: list[FuzzFailure] = field(default_factory=list)
    """The first few of `failed`."""
    memory_before: int = 0
    memory_after: int = 0
    seconds: float = 0.0
    hypothesis: bool = False
    """Whether hypothesis was there to draw frames."""

    @property
    def memory_flat(self) -> bool:
        return self.memory_after - self.memory_before <= FLAT_BYTES

    @property
    def every_frame_counted(self) -> bool:
        return all(counts.total() == self.frames for counts in self.reasons.values())

    @property
    def passed(self) -> bool:
        return not self.failed and self.memory_flat and self.every_frame_counted


def fuzz(
    targets: Mapping[str, Target], frames: int, seed: int, progress: Callable[[int], None] = lambda _: None
) -> FuzzReport:
    """Give each of `frames` mutated frames to every target. `progress` hears how many more are done, now and then."""
    report = FuzzReport(seed, reasons={name: Counter() for name in targets}, hypothesis=hypothesis_installed())
    started = time.perf_counter()
    for frame in islice(hostile_frames(seed), frames):
        for name, target in targets.items():
            try:
                reason = target(frame)
            except Exception as error:  # that this never happens is what the run is to show
                reason = f"raised {type(error).__name__}"
                report.failed += 1
                if len(report.failures) < MAX_FAILURES_KEPT:
                    report.failures.append(FuzzFailure(name, frame, f"{type(error).__name__}: {error}"))
            report.reasons[name][reason] += 1
        report.frames += 1
        if report.frames == min(WARM_UP_FRAMES, frames):
            report.memory_before = resident_bytes()
        if report.frames % PROGRESS_EVERY == 0:
            progress(PROGRESS_EVERY)
    report.memory_after = resident_bytes()
    report.seconds = time.perf_counter() - started
    return report


def resident_bytes() -> int:
    """Memory this process holds now."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def hostile_frames(seed: int) -> Iterator[bytes]:
    """Without end: some seeds untouched, most mutated, some cut, some spliced together, some plain noise."""
    draw = random.Random(seed)  # noqa: S311  # repeatable on purpose
    seeds = seed_frames(draw)
    while True:
        frame = bytearray(draw.choice(seeds))
        choice = draw.random()
        if choice < 0.05:
            pass
        elif choice < 0.50:
            mutate(frame, draw)
        elif choice < 0.65:
            del frame[draw.randrange(len(frame)) :]
        elif choice < 0.80:
            other = draw.choice(seeds)
            frame[draw.randrange(len(frame)) :] = other[draw.randrange(len(other)) :]
        elif choice < 0.90:
            # Bytes that steer the parser, so that more than the first test of a frame is reached.
            for at in (0, 1, 2, 4, 41, 42, 43, 148, 154, 155, 194, 195):
                if at < len(frame) and draw.random() < 0.3:
                    frame[at] = draw.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 0xF0, 0xFF))
        else:
            frame = bytearray(draw.randbytes(draw.randrange(MAX_FRAME_BYTES)))
            if draw.random() < 0.5:
                following = draw.choice((0, 2, 3, 4, 5, 6, 7, 0xF0))
                frame[:5] = bytes((1, following, draw.getrandbits(8), 0, PROTOCOL_VERSION))
        yield bytes(frame[:MAX_FRAME_BYTES])


def mutate(frame: bytearray, draw: random.Random) -> None:
    for _ in range(draw.randint(1, 8)):
        at = draw.randrange(len(frame))
        choice = draw.random()
        if choice < 0.4:
            frame[at] ^= 1 << draw.randrange(8)
        elif choice < 0.7:
            frame[at] = draw.getrandbits(8)
        elif choice < 0.85:
            frame[at:at] = draw.randbytes(draw.randint(1, 16))
        elif len(frame) > 16:
            del frame[at : at + draw.randint(1, 8)]


def seed_frames(draw: random.Random) -> list[bytes]:
    """Frames of every shape, their fields drawn by scapy's fuzz() (a quarter has random type bytes too) and, where it
    is installed, by hypothesis."""
    table = fuzz_table()
    # scapy draws from the global generator: seed it for this, and give its state back after.
    state = random.getstate()
    random.seed(draw.getrandbits(64))
    try:
        frames = [seed_frame(table, draw, anything=number % 4 == 0) for number in range(SEED_FRAMES)]
    finally:
        random.setstate(state)
    if hypothesis_installed():
        from trials.fuzz.drawn import drawn_frames

        frames += [addressed(frame, table, draw) for frame in drawn_frames(HYPOTHESIS_FRAMES, draw.getrandbits(32))]
    return frames


def hypothesis_installed() -> bool:
    return find_spec("hypothesis") is not None


def addressed(frame: bytes, table: ForwardingTable, draw: random.Random) -> bytes:
    """The frame, in half of all cases with a filter that leads somewhere."""
    if draw.random() < 0.5:
        return frame
    return frame[:FID_OFFSET] + matching_fid(table, draw) + frame[FORWARDING_BYTES:]


def seed_frame(table: ForwardingTable, draw: random.Random, *, anything: bool) -> bytes:
    kinds = CHAINED if anything else (draw.choice(RENDEZVOUS), PSIRPMetadata, PSIRPAuthentication)
    layers = (PSIRPForwarding, *draw.sample(kinds, draw.randint(0, 3)))
    payload = draw.randbytes(draw.randrange(64)) if draw.random() < 0.7 else None
    frame = b""
    for layer, following in zip(layers, (*layers[1:], None), strict=True):
        values: dict[str, Any] = {}
        if not anything:
            last = HeaderType.NONE if payload is None else HeaderType.PAYLOAD
            values = {"type": int(layer.header_type), "next": int(following.header_type if following else last)}
            if layer.header_type in PROTO_OFFSETS:
                values["proto"] = PROTOCOL_VERSION
            if layer is PSIRPForwarding:
                values |= {"ttl": draw.choice((0, 1, 2, 64, 255)), "fid": matching_fid(table, draw)}
        # fuzz() leaves values alone that are given.
        frame += bytes(scapy_fuzz(layer(**values)))
    return frame + (payload or b"")


def fuzz_table() -> ForwardingTable:
    """A node with a few links and random tags; always the same, so that runs can be compared."""
    draw = random.Random(248)  # noqa: S311  # repeatable on purpose
    links = {number: random_tags(draw) for number in range(1, LINKS + 1)}
    return ForwardingTable(links, random_tags(draw), {number: random_tags(draw) for number in links})


def random_tags(draw: random.Random) -> Tags:
    return tuple(sum(1 << bit for bit in draw.sample(range(FILTER_BITS), TAG_BITS)) for _ in range(TABLES))


def matching_fid(table: ForwardingTable, draw: random.Random) -> bytes:
    if draw.random() < 0.1:
        return BROADCAST_FID
    index = draw.randrange(TABLES)
    every = [*table.links.values(), *table.incoming.values(), table.internal]
    zfilter = 0
    for tags in draw.sample(every, draw.randint(0, 4)):
        zfilter |= tags[index]
    if draw.random() < 0.1:
        zfilter |= draw.getrandbits(FILTER_BITS)
    return zfilter.to_bytes(FILTER_BYTES, "big") + bytes([index])


def codec_target(frame: bytes) -> str:
    """Parse; what parses must build to the same bytes again."""
    try:
        parsed = parse(frame)
    except WireError as error:
        return f"refused: {kind_of(error)}"
    if build(parsed) != frame:
        raise AssertionError("builds to other bytes than it was parsed from")
    return "parsed"


def kind_of(error: WireError) -> str:
    """The reason without its numbers, so that counts stay few."""
    return next((kind for kind in REFUSALS if kind in error.reason), "other")


REFUSALS = ("cut short", "is not known", "a second", "was announced", "has proto")


def forwarder_target(decide: Decide) -> Target:
    """A forwarder under fuzz: frames arrive on its links in turn, and one in a few is the node's own.

    Checks what holds for every decision: a drop has a reason and no way out, a malformed frame is one the codec
    refuses, what leaves is still a frame, and nothing goes back out of the link it came from.
    """
    turn = 0

    def target(frame: bytes) -> str:
        nonlocal turn
        turn = (turn + 1) % (LINKS + 1)
        arrival = turn or None
        decision = decide(frame, arrival)
        refused = codec_target(frame) != "parsed"
        if (decision.drop is Drop.MALFORMED) != refused:
            raise AssertionError(f"codec and forwarder disagree: {decision.drop or 'forwarded'}")
        if (decision.drop is None) != bool(decision.out or decision.deliver):
            raise AssertionError("a frame is dropped exactly when it goes nowhere")
        if arrival in decision.out:
            raise AssertionError("sent back out of the arrival link")
        if decision.drop is not None:
            return f"dropped: {decision.drop.value}"
        parse(decision.frame)
        return " and ".join(
            word for word, happened in (("forwarded", decision.out), ("delivered", decision.deliver)) if happened
        )

    return target


def reference_target() -> Target:
    table = fuzz_table()
    return forwarder_target(lambda frame, arrival: reference_decision(frame, arrival, table))


def fast_target() -> Target:
    """The forwarder that nodes run, held to the reference on every frame, with small memories that overflow often.

    It is driven as a node drives it, through `forward`; the decision is what came out of it.
    """
    table = fuzz_table()
    forwarder = Forwarder(table, cache_entries=FUZZ_CACHE_ENTRIES, loop_entries=FUZZ_LOOP_ENTRIES)
    ticks = count()
    sent: list[tuple[LinkNumber, bytes]] = []
    delivered: list[bytes] = []
    for number in table.links:
        forwarder.attach(number, lambda frame, number=number: sent.append((number, frame)))  # type: ignore[misc]
    forwarder.deliver_to(delivered.append)

    def decide(frame: bytes, arrival: LinkNumber | None) -> Decision:
        sent.clear()
        delivered.clear()
        before = dict(forwarder.statistics.drops)
        forwarder.forward((frame,), arrival, next(ticks) * FUZZ_TICK_SECONDS)
        drop = next((reason for reason, total in forwarder.statistics.drops.items() if total > before[reason]), None)
        leaving = {copy for _, copy in sent} | set(delivered) or {frame}
        if len(leaving) > 1:
            raise AssertionError("copies of one frame differ")
        return Decision(tuple(number for number, _ in sent), bool(delivered), leaving.pop(), drop)

    return forwarder_target(differential(decide))


def differential(decide: Decide) -> Decide:
    """The forwarder under a condition: every decision must be the reference's. Only loops it may drop on its own."""
    table = fuzz_table()

    def both(frame: bytes, arrival: LinkNumber | None) -> Decision:
        decision = decide(frame, arrival)
        if decision.drop is not Drop.LOOP:
            wanted = reference_decision(frame, arrival, table)
            if decision != wanted:
                raise AssertionError(f"decides {decision}, the reference {wanted}, arrival {arrival}")
        return decision

    return both

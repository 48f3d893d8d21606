"""Feed hostile payloads to everything of the control plane that takes bytes: each has a reason, nothing escapes.

A target is a function from bytes to a short reason, as in `trials.fuzz.wire`; one that raises has failed.
Payloads are valid ones that were mutated, cut, spliced and spoilt in places that steer a parser, and plain noise.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from psirp_stack.control import courier_wire, messages
from psirp_stack.control.codes import Function
from psirp_stack.control.courier import Courier, CourierConfig
from psirp_stack.control.frames import ControlFrameError, build_control, parse_control
from psirp_stack.control.link_state import LinkStateProtocol
from psirp_stack.control.link_state_settings import LinkStateConfig
from psirp_stack.control.tag_source import DerivedTags
from psirp_stack.forwarding_model import BROADCAST_FID
from psirp_stack.topology.manager import TopologyManager

Target = Callable[[bytes], str]

MAX_FAILURES_KEPT = 20
NAMES = ("a", "b", "c", "node-1", "x" * 64)
LINKS = 3
ROOM = 1300
HELD = 256 * 1024
NODES = 64
ITEMS = 64
"""Distinct items in seeds, so that the topology manager sees matches of the same item again."""
STEP = 0.05
LIFE = 500
TOKEN_KEY = bytes(32)
TOKENS = {name: Courier("a", 5, lambda to: None, token_key=TOKEN_KEY).token_for(name) for name in NAMES}
"""What the courier under test wants to be shown: most seeds do, as only who was told does."""


@dataclass(slots=True)
class ControlFuzzReport:
    """What a run found. Each target's counts add up to `payloads`."""

    payloads: int = 0
    reasons: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[tuple[str, bytes, str]] = field(default_factory=list)
    """Target, payload and error of the first few that raised."""
    failed: int = 0


def fuzz_control(rng: random.Random, count: int, targets: Mapping[str, Target] | None = None) -> ControlFuzzReport:
    """Give each of `count` payloads to every target."""
    chosen = targets if targets is not None else control_targets(rng)
    report = ControlFuzzReport(reasons={name: Counter() for name in chosen})
    for payload in islice(hostile_payloads(rng), count):
        report.payloads += 1
        for name, target in chosen.items():
            try:
                reason = target(payload)
            except Exception as error:  # that this never happens is what the run is to show
                reason = f"raised {type(error).__name__}"
                report.failed += 1
                if len(report.failures) < MAX_FAILURES_KEPT:
                    report.failures.append((name, payload, f"{type(error).__name__}: {error}"))
            report.reasons[name][reason] += 1
    return report


def control_targets(rng: random.Random) -> dict[str, Target]:
    """Every parser of the control plane, those with a memory in one life for the whole run."""
    return {
        "messages": messages_target,
        "courier": courier_target(),
        "link state": link_state_target(rng),
        "control frames": frames_target(),
        "topology": topology_target(),
    }


def messages_target(payload: bytes) -> str:
    """Decode; what was decoded must be encoded to something that means the same."""
    try:
        message = messages.decode(payload)
    except messages.MessageError:
        return "refused"
    if messages.decode(messages.encode(message)) != message:
        raise AssertionError("encoded to something else")
    return type(message).__name__


def courier_target() -> Target:
    """A courier that also sends, hears everything, and handles what it is handed; its memory must stay in bounds."""
    config = CourierConfig(max_held_bytes=HELD, max_peers=NODES, max_queued=NODES, give_up_after=2.0, forget_after=5.0)
    courier = Courier("a", 5, lambda to: ROOM, config, token_key=TOKEN_KEY)
    now = 0.0

    def target(payload: bytes) -> str:
        nonlocal now, courier
        now += STEP
        if round(now / STEP) % LIFE == 0:
            # Somebody who claims the highest boot there is silences a peer for good, so begin anew now and then.
            courier = Courier("a", 5, lambda to: ROOM, config, token_key=TOKEN_KEY)
        before = courier.drops.copy()
        if courier.room("b"):
            courier.send("b", Function.NODE, payload, now)
        courier.receive(payload, now)
        courier.handle_timer(now)
        outcome = "taken"
        while (arrival := courier.next_arrival()) is not None:
            courier.acknowledge(arrival.token, now)
            outcome = "handed up"
        while courier.next_datagram(now) is not None:
            pass
        while courier.next_outcome() is not None:
            pass
        if courier.held_bytes > HELD or courier.peers > NODES or courier.held_bytes < 0:
            raise AssertionError(f"out of bounds: {courier.held_bytes} bytes held, {courier.peers} peers")
        dropped = courier.drops - before
        return f"dropped: {next(iter(dropped)).value}" if dropped else outcome

    return target


def link_state_target(rng: random.Random) -> Target:
    """A node with a few links on which payloads arrive in turn."""
    now = 0.0
    # With a fixed random generator of its own, so that the order of targets does not matter.
    own = random.Random(rng.getrandbits(64))  # noqa: S311  # repeatable on purpose
    state = LinkStateProtocol("a", 5, DerivedTags(b"fuzz"), own, now, config=LinkStateConfig(max_nodes=NODES))
    for number in range(LINKS):
        state.add_link(number, ROOM, now)

    def target(payload: bytes) -> str:
        nonlocal now
        now += STEP
        before = state.drops.copy()
        state.receive(int(now / STEP) % (LINKS + 1), payload, now)
        state.handle_timer(now)
        while (frame := state.next_frame(now)) is not None:
            messages.decode(frame[1])
        while state.next_event() is not None:
            pass
        for name in NAMES:
            state.route_to(name)
        state.table()
        if len(state.graph().graph.names) > NODES:
            raise AssertionError("more nodes than there is room for")
        dropped = state.drops - before
        return f"dropped: {next(iter(dropped)).value}" if dropped else "taken"

    return target


def frames_target() -> Target:
    """Payloads as whole frames, and inside control frames."""

    def target(payload: bytes) -> str:
        for name in ("a", "b"):
            frame = build_control(BROADCAST_FID, Function.NODE, name, payload)
            if name == "a" and parse_control(frame, "a").payload != payload:
                raise AssertionError("another payload came out")
            spoilt = bytearray(frame)
            spoilt[len(payload) % len(frame)] ^= 1
            try:
                parse_control(bytes(spoilt), "a")
            except ControlFrameError:
                continue
        try:
            return parse_control(payload, "a").function.name
        except ControlFrameError as error:
            return f"dropped: {error.drop.value}"

    return target


def topology_target() -> Target:
    """A topology manager that gets every match there is among the payloads."""
    known = LinkStateProtocol("a", 1, DerivedTags(b"fuzz"), random.Random(0), 0.0).graph()  # noqa: S311  # repeatable
    manager = TopologyManager(known, DerivedTags(b"fuzz"))

    def target(payload: bytes) -> str:
        try:
            message = messages.decode(payload)
        except messages.MessageError:
            return "refused"
        if not isinstance(message, messages.Match):
            return "no match"
        manager.receive(message, "a")
        said = 0
        while (out := manager.next_message()) is not None:
            said += 1
            manager.delivery_failed(out[0], out[1], 0.0)
        return "answered" if said else "ignored"

    return target


def hostile_payloads(rng: random.Random) -> Iterator[bytes]:
    """Without end: some seeds untouched, most spoilt, some noise."""
    while True:
        payload = bytearray(seed_payload(rng))
        choice = rng.random()
        if choice < 0.25:
            pass
        elif choice < 0.65:
            for _ in range(rng.randint(1, 4)):
                _spoil(payload, rng)
        elif choice < 0.75:
            del payload[rng.randrange(len(payload)) :]
        elif choice < 0.85:
            other = seed_payload(rng)
            payload[rng.randrange(len(payload)) :] = other[rng.randrange(len(other)) :]
        elif choice < 0.9:
            # MessagePack that promises more than there is, or nests without end.
            payload = bytearray(rng.choice((b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 5000)))
        else:
            payload = bytearray(rng.randbytes(rng.randrange(1, 400)))
        yield bytes(payload)


def _spoil(payload: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(payload))
    choice = rng.random()
    if choice < 0.4:
        payload[at] ^= 1 << rng.randrange(8)
    elif choice < 0.7:
        payload[at] = rng.choice((0, 1, 0x7F, 0x80, 0x90, 0x9F, 0xA0, 0xC0, 0xC4, 0xCF, 0xD9, 0xDC, 0xFF))
    elif choice < 0.85:
        payload[at:at] = rng.randbytes(rng.randint(1, 9))
    elif len(payload) > 8:
        del payload[at : at + rng.randint(1, 4)]


def shown(name: str) -> int:
    return TOKENS[name]


def seed_payload(rng: random.Random) -> bytes:
    """Something that a node could say."""
    names = tuple(rng.sample(NAMES, rng.randint(0, 3)))
    name = rng.choice(NAMES)
    numbers = [rng.choice((0, 1, 2, 5, rng.getrandbits(8), rng.getrandbits(63))) for _ in range(4)]
    item = (bytes(32), rng.randrange(ITEMS).to_bytes(32, "big"))
    neighbours = tuple((other, ROOM) for other in names)
    part, parts = rng.choice(((0, 1), (0, 2), (1, 2), (3, 2)))
    state = messages.LinkState(name, numbers[0], numbers[1], 1, neighbours, part, parts)
    aged = messages.AgedState(rng.choice((0, numbers[2])), messages.encode(state))
    said: messages.Message
    kind = rng.randrange(14)
    if kind == 0:
        said = messages.Hello(name, rng.choice((1, 1, 1, numbers[0])), rng.choice((names, ("a",))), ROOM)
    elif kind == 1:
        said = messages.LinkStates((aged, messages.AgedState(0, rng.randbytes(40))))
    elif kind == 2:
        said = messages.LinkStates((aged,) * rng.randint(0, 3))
    elif kind == 3:
        said = messages.LinkStateReceived(name, ((name, numbers[0], numbers[1], part),))
    elif kind in (4, 5):
        said = messages.Match(*item, rng.randrange(9), names, tuple(rng.sample(NAMES, 2)), messages.OPEN_SCOPE)
    elif kind == 6:
        said = messages.SubscribeItem(numbers[0], *item)
    elif kind == 7:
        said = messages.StartPublish(*item, numbers[0], (messages.FilterGrant(bytes(32), names, ROOM),))
    elif kind == 8:
        return build_control(BROADCAST_FID, rng.choice(list(Function)), rng.choice(NAMES), b"payload")
    elif kind == 9 and rng.random() < 0.2:
        return courier_wire.encode(courier_wire.Challenge("b", numbers[0], shown("b")))
    elif kind == 9:
        held = (courier_wire.HeldPieces(numbers[1], 0, rng.randbytes(rng.randrange(4))),)
        return courier_wire.encode(
            courier_wire.Received("b", numbers[0], 5, numbers[1], rng.getrandbits(32), held, shown("b"), 1)
        )
    else:
        floor = 0 if rng.random() < 0.9 else numbers[1]
        body = rng.randbytes(rng.choice((0, 10, 1000)))
        function = rng.choice((*map(int, Function), 0))
        number = floor + rng.choice((0, 1, 2, rng.randrange(40)))
        pieces = (0, part, max(parts, 1))
        piece = (name, 1 if rng.random() < 0.9 else numbers[0], floor, min(number, (1 << 63) - 1), function, *pieces)
        return courier_wire.encode(courier_wire.Piece(*piece, rng.random() < 0.5, body, shown(name), numbers[0]))
    return messages.encode(said)

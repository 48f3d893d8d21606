"""What a frame's payload says: messages of the control plane, of couriers, of the transport, of requests for versions.

The running stack's own declarations decode them, so what is shown is what a node would understand.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from psirp_stack.control import courier_wire, messages
from psirp_stack.control.codes import CONTROL_PREFIX, Function
from psirp_stack.control.relay_frames import RelayError, unwrap
from psirp_stack.pull import messages as pull_messages
from psirp_stack.tools.text import short_hex
from psirp_stack.transport import messages as transport_messages
from psirp_stack.wire.codec import WireError, parse
from psirp_stack.wire.numbers import HeaderType

MessageValue = int | str | bool | float | None | list["MessageValue"] | dict[str, "MessageValue"]
"""As JSON has it; byte strings are hex digits."""

MAX_TEXT = 300
_COURIER = (Function.RENDEZVOUS, Function.TOPOLOGY, Function.NODE)
_RELAYS = (Function.RELAY, Function.RELAY_DATA)
_PULLS = (Function.PULL, Function.PULLED)
_ERRORS = (
    messages.MessageError,
    courier_wire.CourierWireError,
    transport_messages.TransportMessageError,
    pull_messages.PullMessageError,
)


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """A message by the name of its declaration."""

    about: str
    """The function that it is for, in lower case; `transport` for what subscribers and publishers say to each other."""
    name: str
    fields: dict[str, MessageValue]
    carries: "DecodedMessage | None" = None
    """What a courier's piece holds, when it holds all of it; and what a frame in a relay's frame says."""

    @property
    def text(self) -> str:
        """In one line."""
        shown = ", ".join(f"{name} {_text(value)}" for name, value in self.fields.items())
        line = f"{self.about}: {self.name}({shown})"
        return line if len(line) <= MAX_TEXT else f"{line[: MAX_TEXT - 1]}…"

    def as_document(self) -> dict[str, MessageValue]:
        return {
            "about": self.about,
            "name": self.name,
            "fields": self.fields,
            "carries": None if self.carries is None else self.carries.as_document(),
        }


def decode_payload(frame: bytes) -> DecodedMessage | None:
    """What the payload of a frame says; None when it is content, or nothing that a node understands."""
    try:
        parsed = parse(frame)
    except WireError:
        return None
    rendezvous, payload = parsed.rendezvous, parsed.payload
    if rendezvous is None or payload is None:
        return None
    try:
        if rendezvous.type == HeaderType.PUBLISH_DATA:
            if rendezvous.sid[:-1] != CONTROL_PREFIX:
                return None
            return _control(rendezvous.sid[-1], payload)
        return _message("transport", transport_messages.decode(payload))
    except _ERRORS:
        return None


def _control(number: int, payload: bytes) -> DecodedMessage | None:
    if number not in Function.__members__.values():
        return None
    function = Function(number)
    about = function.name.lower().replace("_", " ")
    if function is Function.LINK_STATE:
        return _link_state(about, messages.decode(payload))
    if function in _PULLS:
        return _message(about, pull_messages.decode(payload))
    if function in _RELAYS:
        return _relayed(about, payload)
    said = courier_wire.decode(payload)
    carries = None
    if isinstance(said, courier_wire.Piece) and said.parts == 1:
        carries = _carried(about, said.body)
    return _message(about, said, carries, leave_out=("body",) if carries is not None else ())


def _carried(about: str, body: bytes) -> DecodedMessage | None:
    try:
        return _message(about, messages.decode(body))
    except messages.MessageError:
        return None


def _link_state(about: str, said: messages.Message) -> DecodedMessage:
    shown = _message(about, said)
    if isinstance(said, messages.LinkStates):
        states: list[MessageValue] = []
        for aged in said.states:
            try:
                state: MessageValue = _value(messages.decode_state(aged.state))
            except messages.MessageError:
                state = aged.state.hex()
            states.append({"age": aged.age, "state": state})
        shown.fields["states"] = states
    return shown


def _relayed(about: str, payload: bytes) -> DecodedMessage | None:
    try:
        wrapped = unwrap(payload)
    except RelayError:
        return None
    stations: list[MessageValue] = [station.name.hex() for station in wrapped.stations]
    fields: dict[str, MessageValue] = {"relays_left": wrapped.relays_left, "stations": stations}
    return DecodedMessage(about, "wrapped frame", fields, decode_payload(wrapped.inner))


def _message(
    about: str, said: msgspec.Struct, carries: DecodedMessage | None = None, leave_out: tuple[str, ...] = ()
) -> DecodedMessage:
    fields = {name: _value(value) for name, value in msgspec.structs.asdict(said).items() if name not in leave_out}
    return DecodedMessage(about, type(said).__name__, fields, carries)


def _value(value: object) -> MessageValue:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, msgspec.Struct):
        return {name: _value(inner) for name, inner in msgspec.structs.asdict(value).items()}
    if isinstance(value, (tuple, list)):
        return [_value(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _text(value: MessageValue) -> str:
    show: Callable[[MessageValue], str] = _text
    if isinstance(value, str):
        return short_hex(value)
    if isinstance(value, list):
        return f"[{', '.join(map(show, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} {show(inner)}" for name, inner in value.items()) + "}"
    return "-" if value is None else str(value)

"""Every message of the control plane, declared once: MessagePack arrays with a number for their kind.

msgspec checks types, lengths and counts while it decodes, so what a handler gets is well formed; everything else is a
`MessageError`. Messages are values: frozen, compared by content, without behaviour.

A node's requests carry a number of its own choosing; the answer repeats it. All requests state how things shall be, not
how they shall change, so that one which is handled twice after a crash does no harm.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from psirp_stack.control.relay_frames import MAX_STATIONS
from psirp_stack.wire.numbers import FID_BYTES, ID_BYTES, KEY_HASH_BYTES, SIGNATURE_BYTES

MAX_MESSAGE_BYTES = 256 * 1024
MAX_NAMES = 4096
"""Nodes in one list: publishers or subscribers of one item, neighbours of one node."""
MAX_ENTRIES = 1024
"""Declarations in one part of a node's whole state."""
MAX_REFUSED = 64
"""Refused declarations in one message."""
MAX_FILTERS = 64
MAX_KEYS = 1024
MAX_LISTED = 256
"""Items in one list."""
MAX_REASON = 300
MAX_STATE_BYTES = 1100
MAX_PARTS = 256
"""Frames that one node's link state may take."""

Id = Annotated[bytes, Meta(min_length=ID_BYTES, max_length=ID_BYTES)]
KeyHash = Annotated[bytes, Meta(min_length=KEY_HASH_BYTES, max_length=KEY_HASH_BYTES)]
Fid = Annotated[bytes, Meta(min_length=FID_BYTES, max_length=FID_BYTES)]
Name = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
"""A node's name, unique in its domain."""
PublicKeyBytes = Annotated[bytes, Meta(min_length=32, max_length=32)]
SignatureBytes = Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Part = Annotated[int, Meta(ge=0, le=MAX_PARTS - 1)]
Reason = Annotated[str, Meta(max_length=MAX_REASON)]
Names = Annotated[tuple[Name, ...], Meta(max_length=MAX_NAMES)]
Keys = Annotated[tuple[KeyHash, ...], Meta(max_length=MAX_KEYS)]

ROOT_SCOPE = bytes(ID_BYTES)


class MessageError(ValueError):
    """Bytes that are no message of the control plane."""


class _Value(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of messages."""


class Credential(_Value, frozen=True):
    """Who asks, proved: the signature covers the request without its credential, and the asking node's name."""

    public_key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    timestamp: Count
    """Milliseconds since the epoch."""
    sequence: Count
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class ScopePolicy(_Value, frozen=True):
    """Who may use a scope. None: everybody."""

    publishers: Keys | None = None
    subscribers: Keys | None = None
    every_packet_signed: bool = False


OPEN_SCOPE = ScopePolicy()


# Requests to the rendezvous.


class PublishScope(_Value, frozen=True, tag=1):
    """Be there, under `parent`. With a policy: be governed by it; only the key that made a scope may change it."""

    number: Count
    sid: Id
    parent: Id = ROOT_SCOPE
    policy: ScopePolicy | None = None
    credential: Credential | None = None


class UnpublishScope(_Value, frozen=True, tag=2):
    """Be gone from under `parent`."""

    number: Count
    sid: Id
    parent: Id = ROOT_SCOPE
    credential: Credential | None = None


class SubscribeScope(_Value, frozen=True, tag=3):
    """Tell this node of the scope's direct children. Makes the scope if there is none."""

    number: Count
    sid: Id
    credential: Credential | None = None


class UnsubscribeScope(_Value, frozen=True, tag=4):
    number: Count
    sid: Id
    credential: Credential | None = None


class PublishItem(_Value, frozen=True, tag=5):
    """This node can publish the item."""

    number: Count
    sid: Id
    rid: Id
    credential: Credential | None = None


class UnpublishItem(_Value, frozen=True, tag=6):
    number: Count
    sid: Id
    rid: Id
    credential: Credential | None = None


class SubscribeItem(_Value, frozen=True, tag=7):
    """This node wants the item."""

    number: Count
    sid: Id
    rid: Id
    credential: Credential | None = None


class UnsubscribeItem(_Value, frozen=True, tag=8):
    number: Count
    sid: Id
    rid: Id
    credential: Credential | None = None


class KeepAlive(_Value, frozen=True, tag=9):
    """This node lives, in its `boot`-th life, and has declared what `digest` stands for. Renews its lease."""

    number: Count
    boot: Count
    digest: Count
    credential: Credential | None = None


class Declaration(_Value, frozen=True):
    """One thing that a node publishes or subscribes to."""

    role: Annotated[int, Meta(ge=0, le=3)]
    """0 publishes the item, 1 subscribes to the item, 2 subscribes to the scope (rid zero)."""
    sid: Id
    rid: Id
    credential: Credential | None = None


class Declare(_Value, frozen=True, tag=10):
    """A part of all that the node publishes and subscribes to. When all parts are there they replace what was."""

    number: Count
    boot: Count
    part: Count
    parts: Count
    entries: Annotated[tuple[Declaration, ...], Meta(max_length=MAX_ENTRIES)]
    credential: Credential | None = None
    """Who declares; those of the entries say with which key each was asked for."""


class Explain(_Value, frozen=True, tag=11):
    """Say what is known of an item, for people who ask why nothing arrives, and nodes that look for who has it."""

    number: Count
    sid: Id
    rid: Id
    keeps: bool = False
    """This node is about to get the current version, and will keep it for others."""


class ListItems(_Value, frozen=True, tag=12):
    """Say which items of a scope are published whose Rids begin so, after the one that is named."""

    number: Count
    sid: Id
    prefix: Annotated[bytes, Meta(max_length=ID_BYTES)] = b""
    after: Id = bytes(ID_BYTES)
    credential: Credential | None = None


RendezvousRequest = (
    PublishScope
    | UnpublishScope
    | SubscribeScope
    | UnsubscribeScope
    | PublishItem
    | UnpublishItem
    | SubscribeItem
    | UnsubscribeItem
    | KeepAlive
    | Declare
    | Explain
    | ListItems
)


# From the rendezvous to a node.


class Reply(_Value, frozen=True, tag=20):
    """How the request with this number ended; `code` is a `Code`."""

    number: Count
    code: Annotated[int, Meta(ge=0, le=255)]
    reason: Reason = ""


class ScopePublished(_Value, frozen=True, tag=21):
    """A scope or item now sits under a scope that this node subscribes to."""

    parent: Id
    child: Id
    is_scope: bool


class ScopeUnpublished(_Value, frozen=True, tag=22):
    parent: Id
    child: Id
    is_scope: bool


class Explanation(_Value, frozen=True, tag=23):
    """What the rendezvous knows of an item."""

    number: Count
    scope_exists: bool
    item_exists: bool
    publishers: Names
    subscribers: Names
    policy: ScopePolicy
    refusals: Annotated[tuple[Reason, ...], Meta(max_length=32)] = ()
    """The latest requests about the item that were refused, in words, newest first."""
    unserved: Annotated[tuple[tuple[Name, Count], ...], Meta(max_length=MAX_NAMES)] = ()
    """Subscribers that topology could not serve, with the code of the reason."""
    former: Names = ()
    """Nodes that published the item, or were subscribed to it, lately."""


class ItemList(_Value, frozen=True, tag=25):
    """The published items of a scope, in the order of their Rids; more than these when it says so."""

    number: Count
    rids: Annotated[tuple[Id, ...], Meta(max_length=MAX_LISTED)]
    more: bool


class DeclarationRefused(_Value, frozen=True):
    """One declaration that the rendezvous did not take, or withdrew when the scope's policy changed."""

    role: Annotated[int, Meta(ge=0, le=3)]
    sid: Id
    rid: Id
    code: Annotated[int, Meta(ge=0, le=255)]
    reason: Reason = ""


class DeclarationsRefused(_Value, frozen=True, tag=24):
    """Which parts of a `Declare` were refused, before its `Reply`; or, with number 0, what was withdrawn later."""

    number: Count
    refused: Annotated[tuple[DeclarationRefused, ...], Meta(max_length=MAX_REFUSED)]


# Between rendezvous and topology, and from topology to nodes.


class Match(_Value, frozen=True, tag=30):
    """Who publishes and who wants an item now. A higher generation replaces what was said before."""

    sid: Id
    rid: Id
    generation: Count
    publishers: Names
    subscribers: Names
    policy: ScopePolicy


class MatchServed(_Value, frozen=True, tag=31):
    """What topology made of a match: subscribers it could not serve, with the code of the reason."""

    sid: Id
    rid: Id
    generation: Count
    unserved: Annotated[tuple[tuple[Name, Count], ...], Meta(max_length=MAX_NAMES)] = ()


class Onward(_Value, frozen=True):
    """A node that sends a copy on, and the filter that it does so along."""

    station: Name
    fid: Fid


class FilterGrant(_Value, frozen=True):
    """One copy that a publisher sends: its filter, whom it reaches, and the longest frame that fits on the way.

    Subscribers that one filter does not reach are served from further nodes, `onward`, one after the other; a `fid` of
    zeros then means that there is none whom the publisher's own filter is for.
    """

    fid: Fid
    subscribers: Names
    mtu: Count
    onward: Annotated[tuple[Onward, ...], Meta(max_length=MAX_STATIONS)] = ()


class StartPublish(_Value, frozen=True, tag=32):
    """Send the item along these filters. Sent again, with a higher generation, whenever they change."""

    sid: Id
    rid: Id
    generation: Count
    filters: Annotated[tuple[FilterGrant, ...], Meta(max_length=MAX_FILTERS)]
    every_packet_signed: bool = False
    """The scope's policy demands it."""
    cacheable: bool = True
    """Nodes on the way may keep versions and give them to others: the scope is for everybody."""


class StopPublish(_Value, frozen=True, tag=33):
    """Nobody is served by this publisher now."""

    sid: Id
    rid: Id
    generation: Count


class Served(_Value, frozen=True, tag=34):
    """Tells a subscriber's node who serves it: None when nobody can, with the code of the reason."""

    sid: Id
    rid: Id
    generation: Count
    publisher: Name | None
    code: Annotated[int, Meta(ge=0, le=255)]
    policy: ScopePolicy


class TopologyStarted(_Value, frozen=True, tag=35):
    """A topology manager began a life and knows no matches: say all of them."""

    boot: Count


RendezvousAnswer = Reply | ScopePublished | ScopeUnpublished | Explanation | ItemList | DeclarationsRefused
NodeMessage = RendezvousAnswer | StartPublish | StopPublish | Served
TopologyMessage = Match
RendezvousMessage = RendezvousRequest | MatchServed | TopologyStarted


# Between neighbours: one hop, not through the courier.


class Hello(_Value, frozen=True, tag=40):
    """This node is at the other end of your link; `heard` are those whose hellos it hears there."""

    name: Name
    boot: Count
    heard: Names
    mtu: Count


class RoleGrant(_Value, frozen=True):
    """The domain's word that a node may have roles: signed with the domain's key."""

    node: Name
    roles: Annotated[int, Meta(ge=0, le=255)]
    key: PublicKeyBytes
    """The node's own, with which it signs its claims."""
    until_ms: Count
    """Milliseconds since the epoch."""
    signature: SignatureBytes


class RoleProof(_Value, frozen=True):
    """Why the roles that a link state claims are to be believed."""

    grant: RoleGrant
    signature: SignatureBytes
    """Of the link state without its proof, made with the key that the grant names."""


class LinkState(_Value, frozen=True):
    """A node's links that work in both directions, flooded to everybody. A higher (boot, number) replaces a lower.

    It travels as the bytes that its origin made of it (`AgedState`): nodes pass those on as they are.
    """

    origin: Name
    boot: Count
    number: Count
    roles: Annotated[int, Meta(ge=0, le=255)]
    """Bits: 1 rendezvous, 2 topology manager."""
    neighbours: Annotated[tuple[tuple[Name, Count], ...], Meta(max_length=MAX_NAMES)]
    """Name and MTU of each."""
    part: Part = 0
    parts: Annotated[int, Meta(ge=1, le=MAX_PARTS)] = 1
    """A node with many neighbours says them in parts, so that each fits into a frame."""
    proof: RoleProof | None = None
    """In part 0 of a state that claims roles by a grant."""


class LinkStateReceived(_Value, frozen=True, tag=42):
    """Acknowledges link states on the link they came by: origin, boot, number, part of each."""

    sender: Name
    states: Annotated[tuple[tuple[Name, Count, Count, Part], ...], Meta(max_length=MAX_NAMES)]


class AgedState(_Value, frozen=True):
    """A part of a link state on its way."""

    age: Count
    """Milliseconds that it spent in nodes since its origin said it, so that it is forgotten everywhere in time."""
    state: Annotated[bytes, Meta(max_length=MAX_STATE_BYTES)]
    """A `LinkState`."""


class LinkStates(_Value, frozen=True, tag=43):
    """As many link states as fit into one frame."""

    states: Annotated[tuple[AgedState, ...], Meta(max_length=MAX_PARTS)]


LinkMessage = Hello | LinkStates | LinkStateReceived
Message = RendezvousMessage | NodeMessage | TopologyMessage | LinkMessage

_encoder = msgspec.msgpack.Encoder()
_states: msgspec.msgpack.Decoder[LinkState] = msgspec.msgpack.Decoder(LinkState)
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


def encode(message: Message | LinkState) -> bytes:
    return _encoder.encode(message)


def decode_state(data: bytes) -> LinkState:
    """The link state in these bytes; `MessageError` when they hold none."""
    try:
        return _states.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageError(str(error)) from None


def decode(data: bytes) -> Message:
    """The message in these bytes; `MessageError` when they hold none."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise MessageError(f"a message has at most {MAX_MESSAGE_BYTES} bytes, not {len(data)}")
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise MessageError(str(error)) from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise MessageError(f"not a message: {error}") from None

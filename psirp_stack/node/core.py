"""A node: forwarder, link state, courier, transport and roles put together, and the applications on top.

What arrives goes down one path: the forwarder decides; frames for this node are control messages, which link state and
courier take, or transport frames, which sender and receiver take. What these have to say goes out through the forwarder
again. `_turn` moves everything that is ready until nothing is; whoever runs a node calls it through the methods below,
and `handle_timer` at `next_timer`.

Still sans-I/O: links are `send` functions, time is an argument, and promises of a store are watched by `when_done`.
"""

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from identifiers import Identifier, ItemId
from psirp_stack.control.codes import Function
from psirp_stack.control.courier import Courier
from psirp_stack.control.frames import (
    CONTROL_OVERHEAD,
    ControlDrop,
    ControlFrameError,
    build_control,
    has_control_scope,
    parse_control,
)
from psirp_stack.control.link_state import LinkStateProtocol
from psirp_stack.control.link_state_events import GraphChanged, NeighbourDown, NeighbourUp, TableChanged
from psirp_stack.control.messages import (
    Credential,
    Declaration,
    DeclarationsRefused,
    Explain,
    Explanation,
    ItemList,
    Message,
    RendezvousRequest,
    Reply,
    ScopePublished,
    ScopeUnpublished,
    Served,
    StartPublish,
    StopPublish,
)
from psirp_stack.forwarding_model import BROADCAST_FID, LinkNumber
from psirp_stack.links.interface import CarrierState, LinkAccount
from psirp_stack.node import attachment
from psirp_stack.node.applications import Application
from psirp_stack.node.attachment import Asked, Consumed, Told
from psirp_stack.node.awaiting_policy import ITEM_OF_FRAME, AwaitingPolicy
from psirp_stack.node.intents import KnowledgeTaker, SubscriptionIntents
from psirp_stack.node.message_exchange import MessageExchange
from psirp_stack.node.paths import describe_paths
from psirp_stack.node.relays import Relays
from psirp_stack.node.request_table import RequestTable
from psirp_stack.node.rerouting import Rerouting
from psirp_stack.node.role_holders import RoleHolders
from psirp_stack.node.role_work import RoleHooks, RoleWork
from psirp_stack.node.settings import NodeDrop, NodeObserver, NodeSettings, Watch
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.node.status import describe
from psirp_stack.pull.service import PullDrop, PullService
from psirp_stack.topology.manager import TopologyManager
from psirp_stack.transport.events import (
    Dropped,
    VersionAcknowledged,
    VersionArrived,
    VersionPublished,
    VersionSkipped,
)
from psirp_stack.transport.hooks import WallClock
from psirp_stack.transport.receiver import Receiver
from psirp_stack.transport.sender import Sender
from psirp_stack.transport.versions import Version, VersionsFor
from psirp_stack.wire.numbers import FID_OFFSET, FORWARDING_BYTES, NEXT_OFFSET, HeaderType

if TYPE_CHECKING:
    from psirp_stack.rendezvous import Rendezvous

Result = TypeVar("Result")

MAX_TURNS = 10_000
"""Rounds of one turn: a node that always has more to say lets others speak."""
FRAMES_A_TURN = 256
"""Transport frames sent in one round, so that control messages are not held up by a large publication."""
MAX_SERVING_KNOWN = 16_384
"""Items of which the last word of who serves them is remembered."""
_FOR_RELAYS = (Function.RELAY, Function.RELAY_DATA)
_FOR_PULLS = (Function.PULL, Function.PULLED)
_TO_SENDER = frozenset({int(HeaderType.SUBSCRIBE_DATA), int(HeaderType.SUBSCRIBE_METADATA)})
_TO_RECEIVER = frozenset({int(HeaderType.PUBLISH_DATA), int(HeaderType.PUBLISH_METADATA)})


class Node:
    """One node. Give it links with `add_link`, and frames that come by them with `receive`."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        now: float,
        rng: random.Random,
        wall_ms: WallClock,
        when_done: Watch,
        versions_for: VersionsFor,
        rendezvous: "Rendezvous | None" = None,
        signatures: NodeSignatures | None = None,
        observer: NodeObserver | None = None,
    ) -> None:
        signatures = signatures if signatures is not None else NodeSignatures(settings.name)
        self.signatures = signatures
        self.name = settings.name
        self.settings = settings
        self.drops: Counter[NodeDrop] = Counter()
        self.control_drops: Counter[ControlDrop] = Counter()
        self.refusals: Counter[str] = Counter()
        """Publications and segments that were not believed, by reason."""
        self.links: dict[LinkNumber, Callable[[bytes], object]] = {}
        self.link_accounts: dict[LinkNumber, Callable[[], LinkAccount]] = {}
        self._observer = observer
        self._wall_ms = wall_ms
        self._when_done = when_done
        self._now = now
        self._in_turn = False
        self._arrival: LinkNumber | None = None
        self._delivered: deque[tuple[LinkNumber | None, bytes]] = deque()
        self._early = AwaitingPolicy()
        self._serving: OrderedDict[ItemId, Served] = OrderedDict()
        self.rerouting = Rerouting(settings.name, settings.tags)
        self._unconfirmed: set[ItemId] = set()
        """Items along whose filters a topology manager sent that is none any more."""
        self.link_state = LinkStateProtocol(
            settings.name,
            settings.boot,
            settings.tags,
            rng,
            now,
            roles=settings.roles,
            config=settings.link_state,
            fixed=settings.fixed,
            trust=settings.trust,
            holder=settings.holder,
            wall_ms=wall_ms,
        )
        self.forwarder = settings.forwarder(settings.name, self.link_state.table())
        self.forwarder.deliver_to(self._deliver)
        self.courier = Courier(
            settings.name,
            settings.boot,
            self._payload_room,
            settings.courier,
            observer,
            token_key=rng.randbytes(32),
        )
        internal = settings.tags.internal_tags(settings.name)
        self.relays = Relays(settings.name, internal, self.link_state.route_to, self.link_state.graph)
        self.sender = Sender(
            settings.name,
            internal,
            versions_for,
            route_to=self.relays.way_to,
            wall_ms=wall_ms,
            rng=rng,
            config=settings.transport,
            sign_answer=signatures.sign_packet if signatures.signs else None,
            tell_sending=settings.tell_sending,
        )
        self.receiver = Receiver(
            settings.name,
            settings.boot,
            internal,
            route_to=self.relays.way_to,
            wall_ms=wall_ms,
            rng=rng,
            config=settings.transport,
            verify=signatures.verify_publication,
            verify_packet=signatures.verify_packet,
            verify_answer=signatures.verify_answer,
        )
        self.intents = SubscriptionIntents(settings.boot, self._sign, settings.intents)
        self._messages = MessageExchange(self.courier, self.link_state, self.intents, self._heard, self.drops)
        self.roles = RoleWork(
            settings,
            rendezvous,
            RoleHooks(
                send=self._messages.send,
                room=self.courier.room,
                acknowledge=lambda arrival: self.courier.acknowledge(arrival.token, self._now),
                when_done=when_done,
                wall_ms=wall_ms,
                now=lambda: self._now,
                turn=lambda: self._turn(self._now),
            ),
        )
        self.pulls = PullService(
            settings.name,
            settings.cache,
            self.sender.versions_of,
            locate=self._locate,
            refusal=lambda item, publisher, version, policy: signatures.refusal_of_pulled(
                item, publisher, version, policy, wall_ms(self._now)
            ),
            route_for=self._direct_route,
            mtu_to=self._mtu_to,
            hops_to=self._hops_to,
            rng=random.Random(rng.random()),  # noqa: S311  (what is kept, and numbers of requests)
        )
        self.request_table = RequestTable(
            self.intents,
            self.sender,
            self.receiver,
            when_done=lambda promise, then: self._when_done(promise, lambda: self._later(then)),
            status=lambda: describe(self),
            paths=lambda asked: describe_paths(self, asked),
            signatures=signatures,
            pulls=self.pulls,
            config=settings.request_table,
            published=self._tell_published if observer is not None or self.pulls.keeps else None,
        )
        self._graph_changed(now)
        if rendezvous is not None:
            self.roles.say(rendezvous.opening)
        self._turn(now)

    @property
    def holders(self) -> RoleHolders:
        """Who has the roles now, as this node sees it."""
        return self.roles.holders

    @property
    def rendezvous(self) -> "Rendezvous | None":
        return self.roles.rendezvous

    @property
    def topology(self) -> TopologyManager | None:
        """There is one while this node is the topology manager."""
        return self.roles.topology

    # Links.

    def add_link(
        self,
        number: LinkNumber,
        send: Callable[[bytes], object],
        mtu: int,
        now: float,
        *,
        send_many: Callable[[Sequence[bytes]], object] | None = None,
        account: Callable[[], LinkAccount] = LinkAccount,
    ) -> None:
        """`send_many` is for links that take a batch at once; `account` says what became of frames on the link."""
        self.links[number] = send
        self.link_accounts[number] = account
        self.forwarder.attach(number, send, send_many)
        self.link_state.add_link(number, mtu, now)
        self._turn(now)

    def neighbour_proved(self, number: LinkNumber, now: float) -> None:
        """On this sealed link somebody has proved to be of the domain: only now a hello gets through."""
        self.link_state.greet(number)
        self._turn(now)

    def remove_link(self, number: LinkNumber, now: float) -> None:
        self.links.pop(number)
        self.link_accounts.pop(number)
        self.forwarder.detach(number)
        self.link_state.remove_link(number, now)
        self._turn(now)

    def carrier_is(self, number: LinkNumber, state: CarrierState, now: float) -> None:
        """A link's carrier says something of itself."""
        match state:
            case CarrierState.DOWN:
                self.link_state.carrier_failed(number, now)
            case CarrierState.DOUBTFUL:
                self.link_state.carrier_doubtful(number, now)
            case CarrierState.UP:
                self.link_state.carrier_back(number, now)
        self._turn(now)

    def receive(self, number: LinkNumber, frames: Sequence[bytes], now: float) -> None:
        """Take in frames that came by a link."""
        if self.pulls.keeps:
            frames = self.pulls.look(frames, now)
        self._arrival = number
        self.forwarder.forward(frames, number, now)
        self._arrival = None
        if self._delivered or self.pulls.has_something_to_say:  # what only passes through gives nothing else to say
            self._turn(now)

    # Applications.

    def attach(self, name: str, tell: Callable[[Told], None]) -> Application | None:
        return self.request_table.attach(name, tell)

    def detach(self, application: Application, now: float) -> None:
        self.request_table.detach(application, now)
        self._turn(now)

    def ask(self, application: Application, request: Asked | Consumed, now: float) -> None:
        self.request_table.request(application, request, now)
        if isinstance(request, attachment.Subscribe) and self.signatures.awaits_policy(request.sid + request.rid):
            # A node that begins a new life, or leaves an item and comes back, may be told who serves it before it has
            # subscribed. To those who told it nothing has changed since, so nobody says it again.
            told = self._serving.get(_item(request.sid, request.rid))
            if told is not None:
                self._take_serving(told, now)
        self._turn(now)

    # Time.

    def next_timer(self) -> float | None:
        times = [
            self.link_state.next_timer(),
            self.courier.next_timer(),
            self.sender.next_timer(),
            self.receiver.next_timer(),
            self.intents.next_timer(),
            self.request_table.next_timer(),
            self.pulls.next_timer(),
            self.roles.next_timer(),
        ]
        return min((time for time in times if time is not None), default=None)

    def handle_timer(self, now: float) -> None:
        for part in (
            self.link_state,
            self.courier,
            self.sender,
            self.receiver,
            self.intents,
            self.request_table,
            self.pulls,
            self.roles,
        ):
            due = part.next_timer()
            if due is not None and due <= now:
                part.handle_timer(now)
        self._end_the_unconfirmed(now)
        self._turn(now)

    # Moving what is ready.

    def _later(self, then: Callable[[], None]) -> None:
        then()
        self._turn(self._now)

    def at(self, now: float) -> None:
        """The clock, for promises that are kept between two calls."""
        self._now = max(self._now, now)

    def _turn(self, now: float) -> None:
        """Let every part say what it has to say, until none has more."""
        self._now = max(self._now, now)
        if self._in_turn:
            return
        self._in_turn = True
        try:
            for _ in range(MAX_TURNS):
                moved = self._take_delivered(now)
                moved |= self._follow_link_state(now)
                moved |= self._move_messages(now)
                moved |= self._move_pulls(now)
                moved |= self._move_transport(now)
                if not moved:
                    return
        finally:
            self._in_turn = False

    def _deliver(self, frame: bytes) -> None:
        self._delivered.append((self._arrival, frame))

    def _take_delivered(self, now: float) -> bool:
        if not self._delivered:
            return False
        while self._delivered:
            arrival, frame = self._delivered.popleft()
            if has_control_scope(frame):
                self._take_control(arrival, frame, now)
            elif frame[NEXT_OFFSET] in _TO_RECEIVER:
                self._take_publication(arrival, frame, now)
            elif frame[NEXT_OFFSET] in _TO_SENDER:
                self.sender.receive(frame, now)
            else:
                self.drops[NodeDrop.NOT_FOR_ANY] += 1
        return True

    def _take_control(self, arrival: LinkNumber | None, frame: bytes, now: float) -> None:
        try:
            control = parse_control(frame, self.name)
        except ControlFrameError as error:
            self.control_drops[error.drop] += 1
            return
        if control.to_all_neighbours:
            if frame[FID_OFFSET:FORWARDING_BYTES] != BROADCAST_FID:
                self.drops[NodeDrop.FROM_AFAR] += 1
            elif control.function is Function.LINK_STATE and arrival is not None:
                self.link_state.receive(arrival, control.payload, now)
            else:
                self.drops[NodeDrop.WRONG_FUNCTION] += 1
        elif control.function in _FOR_RELAYS:
            self.forwarder.forward(self.relays.relayed(control.payload), None, now)
        elif control.function in _FOR_PULLS:
            self.pulls.receive(control.function, control.payload, now)
        else:
            self.courier.receive(control.payload, now)

    def _take_publication(self, arrival: LinkNumber | None, frame: bytes, now: float) -> None:
        """A frame of an item counts under its scope's policy; until that is known it waits."""
        if not self.signatures.awaits_policy(frame[ITEM_OF_FRAME]):
            self.receiver.receive(frame, now, arrival)
        elif not self._early.add(arrival, frame):
            self.drops[NodeDrop.EARLY] += 1

    # Link state.

    def _follow_link_state(self, now: float) -> bool:
        moved = False
        while (out := self.link_state.next_frame(now)) is not None:
            moved = True
            number, payload = out
            send = self.links.get(number)
            if send is not None:
                send(build_control(BROADCAST_FID, Function.LINK_STATE, None, payload))
        changed = False
        while (event := self.link_state.next_event()) is not None:
            moved = True
            if isinstance(event, TableChanged):
                self.forwarder.replace_table(self.link_state.table())
            elif isinstance(event, NeighbourUp | NeighbourDown) and self._observer is not None:
                self._observer(event)
            changed |= isinstance(event, GraphChanged)
        if changed:
            self._graph_changed(now)
            self._messages.take_unknown(self.roles, now)
        return moved

    def _graph_changed(self, now: float) -> None:
        self.courier.paths_changed(now)
        known = self.link_state.graph()
        changed = self.roles.graph_changed(known, now)
        rendezvous = self.holders.rendezvous
        self.intents.rendezvous_is(None if rendezvous is None else rendezvous.name, now)
        if changed.topology:
            # Generations of another manager begin anew.
            self._unconfirmed = self.sender.new_manager()
        for rerouted in self.rerouting.graph_changed(known):
            self.sender.reroute(rerouted.item, tuple(map(self.relays.local, rerouted.filters)), now)

    def _end_the_unconfirmed(self, now: float) -> None:
        if self.holders.ends_the_unconfirmed(now):
            for item in self._unconfirmed:
                self.rerouting.revoked(item)
                self.sender.revoke(item, 1, now)
            self._unconfirmed = set()

    def _sign(self, request: RendezvousRequest | Declaration) -> Credential | None:
        return self.signatures.sign_request(request, self._wall_ms(self._now))

    def _payload_room(self, name: str) -> int | None:
        route = self.link_state.route_to(name)
        return None if route is None else route.mtu - CONTROL_OVERHEAD

    # Control messages.

    def _move_messages(self, now: float) -> bool:
        moved = self._messages.move(self.roles, now)
        for datagram in self._messages.datagrams(now):
            moved = True
            route = self.link_state.route_to(datagram.to)
            if route is not None:
                frame = build_control(route.fid, datagram.function, datagram.to, datagram.payload)
                sent = [frame] if route.relay is None else self.relays.control(datagram.to, frame)
                self.forwarder.forward(sent, None, now)
        return moved

    def _heard(self, message: Message, now: float) -> None:
        self._hear(message, now)

    def _hear(self, message: Message, now: float) -> None:
        match message:
            case Reply() | Explanation() | ItemList() | DeclarationsRefused():
                self.intents.receive(message, now)
            case ScopePublished() | ScopeUnpublished():
                self.request_table.scope_changed(message)
            case StartPublish():
                item = _item(message.sid, message.rid)
                self._unconfirmed.discard(item)
                signed = message.every_packet_signed and self.signatures.signs
                self.sender.set_packet_signer(item, self.signatures.sign_packet if signed else None)
                self.sender.set_cacheable(item, message.cacheable)
                self.pulls.policy_heard(item, message.cacheable, now)
                filters = tuple(map(self.relays.local, message.filters))
                if self.sender.grant(item, message.generation, filters, now):
                    self.rerouting.granted(item, message.filters)
                self.request_table.demand_may_have_changed(item)
            case StopPublish():
                item = _item(message.sid, message.rid)
                self._unconfirmed.discard(item)
                if self.sender.revoke(item, message.generation, now):
                    self.rerouting.revoked(item)
                self.request_table.demand_may_have_changed(item)
            case Served():
                self._remember_serving(message)
                self._take_serving(message, now)
                self.request_table.served(message, now)
            case _:
                self.drops[NodeDrop.WRONG_FUNCTION] += 1

    def _remember_serving(self, message: Served) -> None:
        item = _item(message.sid, message.rid)
        self._serving[item] = message
        self._serving.move_to_end(item)
        if len(self._serving) > MAX_SERVING_KNOWN:
            self._serving.popitem(last=False)
            self.drops[NodeDrop.SERVING_FORGOTTEN] += 1

    def _take_serving(self, message: Served, now: float) -> None:
        item = _item(message.sid, message.rid)
        self.signatures.served(item, message.policy)
        # What this node publishes itself needs no network: the desk hands it out.
        publisher = None if message.publisher == self.name else message.publisher
        self.receiver.served(item, publisher, message.policy, now)
        for arrival, frame in self._early.take(bytes(item)):
            self.receiver.receive(frame, now, arrival)

    # Versions that are asked for once.

    def _move_pulls(self, now: float) -> bool:
        moved = False
        frames: list[bytes] = []
        while len(frames) < FRAMES_A_TURN and (out := self.pulls.next_message()) is not None:
            moved = True
            to, function, payload = out
            route = self.link_state.route_to(to)
            if route is None:
                self.pulls.drops[PullDrop.NO_WAY] += 1
                continue
            frame = build_control(route.fid, function, to, payload)
            frames += [frame] if route.relay is None else self.relays.control(to, frame)
        while len(frames) < FRAMES_A_TURN and (frame_of_cache := self.pulls.next_frame()) is not None:
            moved = True
            frames.append(frame_of_cache)
        if frames:
            self.forwarder.forward(frames, None, now)
        return moved

    def _locate(self, item: ItemId, taker: KnowledgeTaker) -> None:
        sid, rid = bytes(item.sid), bytes(item.rid)
        keeps = self.pulls.keeps
        self.intents.explain(lambda number: Explain(number, sid, rid, keeps), taker, self._now)

    def _direct_route(self, name: str) -> tuple[bytes, int] | None:
        route = self.link_state.route_to(name)
        return None if route is None or route.relay is not None else (route.fid, route.mtu)

    def _mtu_to(self, name: str) -> int | None:
        route = self.link_state.route_to(name)
        return None if route is None else route.mtu

    def _hops_to(self, name: str) -> int | None:
        route = self.link_state.route_to(name)
        return None if route is None else route.hops

    # Transport.

    def _move_transport(self, now: float) -> bool:
        moved = False
        frames: list[bytes] = []
        while len(frames) < FRAMES_A_TURN:
            frame = self.receiver.next_frame(now) or self.sender.next_frame(now)
            if frame is None:
                break
            frames.append(frame)
        if frames:
            moved = True
            self.forwarder.forward(self.relays.outgoing(frames), None, now)
        observer = self._observer
        while (arrived := self.receiver.next_event()) is not None:
            moved = True
            if observer is not None:
                observer(arrived)
            match arrived:
                case VersionArrived():
                    self.request_table.arrived(arrived, now)
                case VersionSkipped():
                    self.request_table.skipped(arrived)
                case Dropped():
                    self.refusals[arrived.reason] += 1
        while (sent := self.sender.next_event()) is not None:
            moved = True
            if observer is not None:
                observer(sent)
            if isinstance(sent, VersionAcknowledged):
                self.request_table.acknowledged(sent.item, now)
        return moved

    def _tell_published(self, item: ItemId, version: Version) -> None:
        self.pulls.published(item, version)
        if self._observer is not None:
            self._observer(VersionPublished(item, version.version_id, version.content, version.number))


def _item(sid: bytes, rid: bytes) -> ItemId:
    return ItemId(Identifier(sid), Identifier(rid))

"""The broker: sessions, subscriptions, what is published and retained, wills, and time that passes. Sans-I/O.

A shell gives it connections, bytes and the time; it writes to connections, and collects in `work` what must be on disk
before it goes on: see `messages`. All sessions of all versions meet here.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from msgspec import structs

from gateway.protocols.mqtt.encode import write
from gateway.protocols.mqtt.messages import (
    BrokerMessage,
    EnteringMessage,
    MessageAcked,
    OutgoingPublish,
    RetainedDropped,
    SessionDropped,
    SessionPut,
    SubscriptionDropped,
    SubscriptionPut,
    WillDropped,
    WillDue,
    WillPut,
    WorkGroup,
    message_of,
)
from gateway.protocols.mqtt.numbers import NEVER, Level, ReasonCode
from gateway.protocols.mqtt.packets import ConnectPacket, SubscriptionRequest, Will
from gateway.protocols.mqtt.routes import RetainedMessages, Target, TopicRoutes
from gateway.protocols.mqtt.session import ClientLine, MqttSession

FOREVER = 1e12
GROUP = 500
"""Messages in one commit, at most: longer ones would hold up the others."""


class ClientGate(Protocol):
    """Who may do what. `None`: everybody may."""

    def may_publish(self, session: MqttSession, topic: str) -> str | None:
        """Why not."""

    def may_subscribe(self, session: MqttSession, wanted: str) -> str | None: ...

    def may_hear(self, session: MqttSession, topic: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    max_sessions: int = 100_000
    max_subscriptions: int = 1_000
    """Of one session."""
    max_queued: int = 50_000
    """Messages of one session that wait."""
    max_queued_bytes: int = 64 * 1024 * 1024
    max_retained: int = 100_000
    max_retained_bytes: int = 256 * 1024 * 1024
    max_received_bytes: int = 16 * 1024 * 1024
    """Messages of QoS 2 of one client that it has not released."""
    max_inflight: int = 100
    """Sent to a client and not acknowledged, at most."""
    receive_maximum: int = 20
    """What a 5.0 client may send before it is acknowledged."""
    topic_aliases: int = 10
    """Of a 5.0 client."""
    own_aliases: int = 100
    """Towards a 5.0 client that allows as many."""
    max_packet: int = 2_000_000
    max_keep_alive: int = 60
    """Seconds; a 5.0 client that asks for more is told so."""
    connect_timeout: float = 10.0
    relays_callbacks: bool = False
    """Whether PUBCALLBACK* of the extension is handed on: it reaches clients whatever they are subscribed to."""


@dataclass(slots=True)
class BrokerCounters:
    connections: int = 0
    """In all."""
    published: int = 0
    delivered: int = 0
    dropped: int = 0
    """Messages that were not delivered: a queue or a connection was full, or they were too large."""
    expired: int = 0
    refused: int = 0
    """CONNECTs that were not accepted."""
    denied: int = 0
    """By the operator's rules."""
    errors: int = 0
    """Packets that were none."""
    taken_over: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)


class MqttBroker:
    def __init__(
        self,
        config: BrokerConfig,
        new_id: Callable[[], str],
        gate: ClientGate | None = None,
        wanted_elsewhere: Callable[[str], bool] | None = None,
    ) -> None:
        """`wanted_elsewhere`: whether somebody beyond this broker may want what is published on a topic."""
        self.config = config
        self.new_id = new_id
        self.gate = gate
        self.now = 0.0
        self.work = WorkGroup()
        self._full: list[WorkGroup] = []
        self.sessions: dict[str, MqttSession] = {}
        self.routes = TopicRoutes()
        self.retained = RetainedMessages(config.max_retained, config.max_retained_bytes)
        self.counters = BrokerCounters()
        self.pages: list[MqttSession] = []
        """Sessions whose queue has to be read on."""
        self.dirty: set[ClientLine] = set()
        """Connections with something to send."""
        self.filters_changed: list[str] = []
        """Filters that were asked for, or perhaps are no more."""
        self.connected = 0
        self._numbers = 0
        self._wanted_elsewhere = wanted_elsewhere
        self._waiting_wills: dict[str, MqttSession] = {}
        self._ending: dict[str, MqttSession] = {}
        """Sessions that nobody is connected to."""

    # Sessions.

    def recall(self, session: MqttSession) -> None:
        """A session of an earlier process; if its client was connected, it has gone now."""
        if not session.ends:
            session.ends = FOREVER if session.expiry == NEVER else self.now + session.expiry
            self.work.ops.append(
                SessionPut(session.number, session.client_id, session.expiry, session.ends, session.user)
            )
        self.sessions[session.client_id] = session
        self._numbers = max(self._numbers, session.number)
        self._ending[session.client_id] = session

    def recall_will(self, client_id: str, will: Will, at: float) -> None:
        """A will that an earlier process did not come to publish; at 0 its client was connected."""
        session = self.sessions.get(client_id) or MqttSession(client_id)
        session.will = will
        session.will_at = at or (self.now + min(will.delay, session.expiry))
        self._waiting_wills[client_id] = session

    def open(
        self, packet: ConnectPacket, client_id: str, line: ClientLine, user: str
    ) -> tuple[MqttSession, bool] | None:
        """The session of a client, and whether it was there; None when there are too many."""
        old = self.sessions.get(client_id)
        if old is None and len(self.sessions) >= self.config.max_sessions:
            return None
        durable = packet.session_expiry > 0 if packet.version == Level.V5 else not packet.clean_start
        expiry = packet.session_expiry if packet.version == Level.V5 else (NEVER if durable else 0)
        if old is not None and old.connection is not None:
            self.counters.taken_over += 1
            taken, old.connection = old.connection, None
            taken.take_over()
            self.connected -= 1
            if old.will is not None and (packet.clean_start or old.will.delay == 0):
                self._publish_will(old)
        if old is not None and (packet.clean_start or not old.durable):
            self._end(old)
            old = None
        present = old is not None
        session = old
        if session is None:
            session = self.sessions[client_id] = MqttSession(client_id, user=user)
        elif session.will is not None:
            # Somebody is back in time.
            session.will = None
            self._waiting_wills.pop(client_id, None)
            self.work.ops.append(WillDropped(client_id))
        self._ending.pop(client_id, None)
        if durable and not session.durable:
            self._numbers += 1
            session.number, session.durable = self._numbers, True
        session.forget_connection()
        session.connection = line
        session.is_loading = True
        session.expiry = expiry
        session.ends = 0.0
        session.user = user
        session.will = packet.will
        if session.durable:
            self.work.ops.append(SessionPut(session.number, client_id, expiry, 0.0, user))
        if packet.will is not None:
            raw = write(structs.replace(packet.will.message, packet_id=1), Level.V5)
            self.work.ops.append(WillPut(client_id, raw, packet.will.delay))
        self.connected += 1
        self.counters.connections += 1
        return session, present

    def ready(self, session: MqttSession) -> None:
        """Its client was told that it is connected: what waits for it may go out."""
        if session.queued:
            self.pages.append(session)
            return
        session.loaded = session.stored
        session.sent_before.clear()
        session.is_loading = False
        session.pump()

    def read(self, session: MqttSession, rows: list[OutgoingPublish], is_all: bool) -> None:
        """The next of a session's queue, from the store."""
        session.is_loading = False
        for out in rows:
            if out.seq > session.loaded and out.packet_id not in session.inflight:
                out.dup = out.packet_id in session.sent_before
                session.pending.append(out)
        session.loaded = max(session.loaded, rows[-1].seq if rows else 0, session.stored if is_all else 0)
        if is_all:
            session.sent_before.clear()
        session.pump()

    def close(self, session: MqttSession, line: ClientLine, *, with_will: bool, expiry: int = -1) -> None:
        """A connection has ended."""
        if session.connection is not line:
            return
        self.connected -= 1
        session.forget_connection()
        if expiry >= 0:
            session.expiry = expiry
        will = session.will
        if will is not None:
            if not with_will:
                session.will = None
                self.work.ops.append(WillDropped(session.client_id))
            elif not will.delay or not session.expiry:
                self._publish_will(session)
            else:
                session.will_at = self.now + min(will.delay, session.expiry)
                self._waiting_wills[session.client_id] = session
                self.work.ops.append(WillDue(session.client_id, session.will_at))
        if not session.durable or not session.expiry:
            self._end(session)
            return
        session.ends = FOREVER if session.expiry == NEVER else self.now + session.expiry
        self._ending[session.client_id] = session
        self.work.ops.append(SessionPut(session.number, session.client_id, session.expiry, session.ends, session.user))

    def _end(self, session: MqttSession) -> None:
        if self.sessions.get(session.client_id) is session:
            del self.sessions[session.client_id]
        self._ending.pop(session.client_id, None)
        if session.client_id in self._waiting_wills:
            self._publish_will(session)
        for wanted in list(session.subscriptions):
            self.routes.remove(session, wanted)
            self.filters_changed.append(wanted)
        if session.number:
            self.work.ops.append(SessionDropped(session.number))

    def end_session(self, client_id: str) -> bool:
        """By order of the operator."""
        session = self.sessions.get(client_id)
        if session is None:
            return False
        if session.connection is not None:
            taken, session.connection = session.connection, None
            self.connected -= 1
            taken.take_over()
        self._end(session)
        return True

    # Wills and time.

    def _publish_will(self, session: MqttSession) -> None:
        will, session.will = session.will, None
        self._waiting_wills.pop(session.client_id, None)
        if will is None:
            return
        self.work.ops.append(WillDropped(session.client_id))
        if self.gate is None or self.gate.may_publish(session, will.message.topic) is None:
            self.publish(message_of(will.message, will.message.topic, None, self.now))

    def tick(self, now: float) -> None:
        self.now = now
        for session in [one for one in self._waiting_wills.values() if one.will_at <= now]:
            self._publish_will(session)
        for session in [one for one in self._ending.values() if one.ends <= now]:
            self._end(session)

    # Subscriptions.

    def subscribe(self, session: MqttSession, request: SubscriptionRequest, identifier: int) -> tuple[int, str]:
        """The reason code, and why not."""
        is_new = request.filter not in session.subscriptions
        if is_new and len(session.subscriptions) >= self.config.max_subscriptions:
            return ReasonCode.QUOTA_EXCEEDED, f"a session has at most {self.config.max_subscriptions} filters"
        refusal = None if self.gate is None else self.gate.may_subscribe(session, request.filter)
        if refusal is not None:
            self.counters.denied += 1
            return ReasonCode.NOT_AUTHORIZED, refusal
        self.routes.add(session, request, identifier)
        self.filters_changed.append(request.filter)
        if session.durable:
            self.work.ops.append(_subscription_put(session, request, identifier))
        return request.qos, ""

    def unsubscribe(self, session: MqttSession, wanted: str) -> int:
        if not self.routes.remove(session, wanted):
            return ReasonCode.NO_SUBSCRIPTION_EXISTED
        self.filters_changed.append(wanted)
        if session.durable:
            self.work.ops.append(SubscriptionDropped(session.number, wanted))
        return ReasonCode.SUCCESS

    def send_retained(self, session: MqttSession, request: SubscriptionRequest, identifier: int) -> None:
        ids = (identifier,) if identifier else ()
        for message in list(self.retained.matching(request.filter)):
            if message.is_expired(self.now):
                self.retained.forget(message.topic)
                continue
            if self.gate is not None and not self.gate.may_hear(session, message.topic):
                continue
            qos = min(message.qos, request.qos)
            if not qos:
                line = session.connection
                if line is not None:
                    line.send(OutgoingPublish(message, 0, True, ids))
                continue
            out = self._enqueue(session, message, qos, True, ids)
            if out is None:
                continue
            if session.durable:
                self.work.entering.append(EnteringMessage(message, [(session, out)], is_new=False))
                self.work.after.append(partial(session.offer, out))
            else:
                session.offer(out)

    # Publishing.

    def publish(
        self,
        message: BrokerMessage,
        then: Callable[[int], None] | None = None,
        *,
        from_log: tuple[str, int] | None = None,
    ) -> None:
        """Give a message to all who want it; `then` is told how many they are, once it may be acknowledged.

        `from_log`: it is in the log already, and how far its item has been taken from there.
        """
        self.counters.published += 1
        is_retained = message.retain
        if is_retained:
            self.work.ops.extend(map(RetainedDropped, self.retained.put(message)))
        route = self.routes.of(message.topic)
        recipients: Iterable[Target] = route.recipients() if route.groups else route.targets
        if not message.qos and not is_retained and from_log is None and not self._is_logged(message.topic):
            count = 0
            for target in recipients:
                count += self._send_now(message, target)
            if then is not None:
                then(count)
            return
        entering = EnteringMessage(message, [], from_log is None, is_retained, from_log)
        immediate: list[Target] = []
        count = 0
        for target in recipients:
            session, qos = target.session, min(message.qos, target.qos)
            if (message.publisher is session and not target.hears_own) or not self._may_hear(session, message.topic):
                continue
            count += 1
            if not qos:
                immediate.append(target)
                continue
            out = self._enqueue(session, message, qos, is_retained and target.keeps_retain, target.ids)
            if out is not None:
                entering.targets.append((session, out))
        if not message.qos and from_log is None:
            # Nobody was promised anything: those who are there need not wait for the disk.
            for target in immediate:
                self._send_now(message, target)
            immediate = []
        if len(self.work.entering) >= GROUP:
            self._full.append(self.work)
            self.work = WorkGroup()
        self.work.entering.append(entering)

        def deliver() -> None:
            for target in immediate:
                self._send_now(message, target)
            for session, out in entering.targets:
                session.offer(out)
            if then is not None:
                then(count)

        self.work.after.append(deliver)

    def _is_logged(self, topic: str) -> bool:
        return self._wanted_elsewhere is not None and self._wanted_elsewhere(topic)

    def _may_hear(self, session: MqttSession, topic: str) -> bool:
        return self.gate is None or self.gate.may_hear(session, topic)

    def _send_now(self, message: BrokerMessage, target: Target) -> int:
        session = target.session
        line = session.connection
        if line is None or (message.publisher is session and not target.hears_own):
            return 0
        if not self._may_hear(session, message.topic):
            return 0
        if line.is_congested:
            session.dropped += 1
            self.counters.dropped += 1
            return 1
        retain = message.retain and target.keeps_retain
        line.send(OutgoingPublish(message, 0, retain, target.ids))
        return 1

    def _enqueue(
        self, session: MqttSession, message: BrokerMessage, qos: int, retain: bool, ids: tuple[int, ...]
    ) -> OutgoingPublish | None:
        config = self.config
        if session.queued >= config.max_queued or session.queued_bytes + message.size > config.max_queued_bytes:
            session.dropped += 1
            self.counters.dropped += 1
            return None
        return session.enqueue(message, qos, retain, ids)

    def settled(self, session: MqttSession, out: OutgoingPublish) -> None:
        """A message has arrived, or never will."""
        session.acknowledge(out)
        if session.durable:
            self.work.ops.append(MessageAcked(session.number, out.seq, out.message.position))

    def tell_system(self, topic: str, payload: bytes) -> None:
        """A figure below `$SYS`: whoever asks gets it, and nobody keeps it."""
        message = BrokerMessage(topic, payload, retain=True)
        self.retained.put(message)
        for target in self.routes.of(topic).recipients():
            self._send_now(message, target)

    def take_work(self) -> WorkGroup:
        """What is next, in order."""
        if self._full:
            return self._full.pop(0)
        work, self.work = self.work, WorkGroup()
        return work

    @property
    def has_work(self) -> bool:
        return bool(self._full) or not self.work.is_empty

    @property
    def waiting(self) -> int:
        """Messages that are not on disk yet."""
        return len(self._full) * GROUP + len(self.work.entering)

    def filters(self) -> set[str]:
        """Every filter that somebody has."""
        return {wanted for session in self.sessions.values() for wanted in session.subscriptions}


def options_of(request: SubscriptionRequest) -> int:
    return request.qos | request.no_local << 2 | request.retain_as_published << 3 | request.retain_handling << 4


def request_of(wanted: str, options: int) -> SubscriptionRequest:
    return SubscriptionRequest(wanted, options & 3, options & 4 == 4, options & 8 == 8, options >> 4 & 3)


def _subscription_put(session: MqttSession, request: SubscriptionRequest, identifier: int) -> SubscriptionPut:
    return SubscriptionPut(session.number, request.filter, options_of(request), identifier)

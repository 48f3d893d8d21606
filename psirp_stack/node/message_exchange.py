"""The control messages of one node: requests go to the rendezvous, what arrives goes to whom it is for.

A message that speaks for a role counts when its source is known to have the role, now. One whose source link state has
not brought yet waits until it has.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator

from psirp_stack.control.codes import Code, Function, ServiceRole
from psirp_stack.control.courier import Courier, CourierArrival, CourierFull, Datagram, SendFailed, Sent
from psirp_stack.control.link_state import LinkStateProtocol
from psirp_stack.control.messages import (
    DeclarationsRefused,
    Match,
    MatchServed,
    Message,
    MessageError,
    ScopePublished,
    ScopeUnpublished,
    Served,
    StartPublish,
    StopPublish,
    TopologyStarted,
    decode,
    encode,
)
from psirp_stack.node.intents import SubscriptionIntents
from psirp_stack.node.role_work import ANSWERS, RoleWork
from psirp_stack.node.settings import NodeDrop

MAX_UNKNOWN_SENDERS = 1024
"""Messages that wait until link state has brought the word of who sent them. Of more, the oldest are dropped."""
_FROM_RENDEZVOUS = (*ANSWERS, DeclarationsRefused, ScopePublished, ScopeUnpublished, Match)
_FROM_TOPOLOGY = (StartPublish, StopPublish, Served, MatchServed, TopologyStarted)


class MessageExchange:
    """Between the courier and those who have something to say. `hear` gets the messages for the node itself."""

    def __init__(
        self,
        courier: Courier,
        link_state: LinkStateProtocol,
        intents: SubscriptionIntents,
        hear: Callable[[Message, float], None],
        drops: Counter[NodeDrop],
    ) -> None:
        self._courier = courier
        self._link_state = link_state
        self._intents = intents
        self._hear = hear
        self._drops = drops
        self._requests: dict[int, int] = {}
        """Number of the request to the rendezvous, by the courier's ticket."""
        self._unknown: deque[CourierArrival] = deque()
        """Messages of senders that link state does not know, or not in this life."""

    def send(self, to: str, function: Function, message: Message, now: float) -> int | None:
        """The courier's ticket; None when it has no room."""
        try:
            return self._courier.send(to, function, encode(message), now)
        except CourierFull:
            self._drops[NodeDrop.NO_ROOM] += 1
            return None

    def move(self, roles: RoleWork, now: float) -> bool:
        """Hand over what is ready in all directions; whether there was anything."""
        moved = self._send_requests(roles, now)
        moved |= roles.move(now)
        while (arrival := self._courier.next_arrival()) is not None:
            moved = True
            self._dispatch(roles, arrival, now)
        while (outcome := self._courier.next_outcome()) is not None:
            moved = True
            self._settled(outcome, now)
            roles.settled(outcome, now)
        return moved

    def datagrams(self, now: float) -> Iterator[Datagram]:
        """What the courier wants sent."""
        while (datagram := self._courier.next_datagram(now)) is not None:
            yield datagram

    def take_unknown(self, roles: RoleWork, now: float) -> None:
        """The network is another one: perhaps it is known now who sent what waits."""
        waiting, self._unknown = self._unknown, deque()
        for arrival in waiting:
            self._dispatch(roles, arrival, now)

    def _send_requests(self, roles: RoleWork, now: float) -> bool:
        moved = False
        holder = roles.holders.rendezvous
        if holder is None:
            return False
        while self._courier.room(holder.name) > 0 and (request := self._intents.next_message(now)) is not None:
            moved = True
            ticket = self.send(holder.name, Function.RENDEZVOUS, request, now)
            if ticket is None:
                self._intents.failed(request.number, Code.LIMIT_REACHED, "too many messages wait to be sent", now)
            else:
                self._requests[ticket] = request.number
        return moved

    def _settled(self, outcome: Sent | SendFailed, now: float) -> None:
        number = self._requests.pop(outcome.ticket, None)
        if number is not None and isinstance(outcome, SendFailed):
            reason = f"the rendezvous {outcome.to!r} did not answer"
            self._intents.failed(number, outcome.reason, reason, now)
        elif number is not None:
            self._intents.arrived(number, now)

    def _dispatch(self, roles: RoleWork, arrival: CourierArrival, now: float) -> None:
        """Hand a message to the function it is for; it is acknowledged when that function has done its work."""
        try:
            message = decode(arrival.body)
        except MessageError:
            self._drops[NodeDrop.NOT_A_MESSAGE] += 1
            self._courier.acknowledge(arrival.token, now)
            return
        if not self._may_say(roles, arrival, message, now):
            return
        taken = False
        match arrival.function:
            case Function.RENDEZVOUS:
                if roles.ask_rendezvous(arrival, message, now):
                    return
            case Function.TOPOLOGY:
                taken = roles.hear_match(message, arrival.source)
            case Function.NODE:
                taken = True
                self._hear(message, now)
        self._drops[NodeDrop.WRONG_FUNCTION] += not taken
        self._courier.acknowledge(arrival.token, now)

    def _may_say(self, roles: RoleWork, arrival: CourierArrival, message: Message, now: float) -> bool:
        """Whether a message's source has the role that it speaks for. One that nobody knows yet has to wait."""
        if isinstance(message, _FROM_RENDEZVOUS):
            role = ServiceRole.RENDEZVOUS
        elif isinstance(message, _FROM_TOPOLOGY):
            role = ServiceRole.TOPOLOGY
        else:
            return True
        known = self._link_state.has_role(arrival.source, arrival.source_boot, role)
        if known and not isinstance(message, ANSWERS) and not roles.holders.has_now(arrival.source, role):
            known = None  # it sees another network than this node; soon one of them will see what the other does
        if known is None:
            self._unknown.append(arrival)
            if len(self._unknown) > MAX_UNKNOWN_SENDERS:
                self._refuse(self._unknown.popleft(), now)
        elif not known:
            self._refuse(arrival, now)
        return bool(known)

    def _refuse(self, arrival: CourierArrival, now: float) -> None:
        self._drops[NodeDrop.NO_ROLE] += 1
        self._courier.acknowledge(arrival.token, now)

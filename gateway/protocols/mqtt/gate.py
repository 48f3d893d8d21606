"""The operator's rules for clients of the broker.

Who may hear what is decided message by message: a filter with wildcards is anybody's, and shows what its client may
hear.
"""

from exchange.patterns import has_wildcard
from gateway.access.guard import AccessGuard
from gateway.access.rules import AccessRequest, Act, Effect
from gateway.protocols.mqtt.names import TopicNames
from gateway.protocols.mqtt.session import MqttSession
from gateway.protocols.mqtt.texts import split_shared
from identifiers import TopicError

SYSTEM = "$SYS"
CALLBACK = "mqtt-user://"
"""Subscribers are callbacks to the rules: `mqtt-user://USER/CLIENT`, and `mqtt-user://anonymous/CLIENT`."""


class RulesGate:
    def __init__(self, access: AccessGuard, names: TopicNames) -> None:
        self._access = access
        self._names = names

    @property
    def _is_open(self) -> bool:
        rules = self._access.rules
        return not rules.rules and rules.default is Effect.ALLOW

    def may_publish(self, session: MqttSession, topic: str) -> str | None:
        if topic.startswith("$"):
            if topic == SYSTEM or topic.startswith(f"{SYSTEM}/"):
                return "what is below $SYS is said by the broker"
            try:
                self._names.of_topic(topic)
            except TopicError as error:
                return str(error)
        if self._is_open:
            return None
        return self._refusal(session, Act.PUBLISH, topic)

    def may_subscribe(self, session: MqttSession, wanted: str) -> str | None:
        pattern = split_shared(wanted)[1]
        if has_wildcard(pattern) or pattern.startswith(SYSTEM):
            return None
        if pattern.startswith("$"):
            try:
                self._names.of_topic(pattern)
            except TopicError as error:
                return str(error)
        return None if self._is_open else self._refusal(session, Act.SUBSCRIBE, pattern)

    def may_hear(self, session: MqttSession, topic: str) -> bool:
        return self._is_open or topic.startswith(SYSTEM) or self._refusal(session, Act.SUBSCRIBE, topic) is None

    def _refusal(self, session: MqttSession, act: Act, topic: str) -> str | None:
        request = AccessRequest(
            act,
            self._names.name_of(topic),
            callback=f"{CALLBACK}{session.user if session.is_known else 'anonymous'}/{session.client_id}"
            if act is Act.SUBSCRIBE
            else None,
            client=session.address or None,
            token=session.is_known,
        )
        return self._access.rules.refusal(request)

"""The redirection extension of 3.1: CONNECT* (version 0xFF), CONNACK* (codes 6, 7, 8) and PUBCALLBACK*. Sans-I/O.

    CONNACK*      20 RL 00 06|07|08, length (2), "ip:port"
    PUBCALLBACK*  F0 RL, length (2), {cb1"cb2"...}, then a whole PUBLISH

A broker that does not know it refuses version 0xFF with return code 1, or closes the connection without a word: a
client then asks again with version 3.
"""

from typing import Final
from urllib.parse import unquote

from gateway.protocols.mqtt.numbers import Level, PacketType, ReasonCode, ReturnCode
from gateway.protocols.mqtt.packets import CodecError, ConnackPacket, PubCallbackPacket, malformed
from gateway.protocols.mqtt.properties import read_binary, string, varint
from gateway.protocols.mqtt.texts import text_of

RENEWALS: Final = frozenset({ReturnCode.RENEW, ReturnCode.RENEW_ACTIVE, ReturnCode.RENEW_TOPICS})
MAX_CALLBACKS: Final = 1_000
_ESCAPED: Final = {'"': "%22", "}": "%7D", "%": "%25"}


def write_renewal(code: ReturnCode, address: str) -> bytes:
    """CONNACK* that sends a client to another broker."""
    if code not in RENEWALS:
        raise ValueError(f"{code!r} sends nobody anywhere")
    body = bytes((0, code)) + string(address)
    return bytes((PacketType.CONNACK << 4,)) + varint(len(body)) + body


def write_callback(packet: PubCallbackPacket) -> bytes:
    names = '"'.join("".join(_ESCAPED.get(letter, letter) for letter in one) for one in packet.callbacks)
    body = string("{" + names + "}") + packet.inner
    return bytes((PacketType.AUTH << 4,)) + varint(len(body)) + body


def read_callback(body: bytes) -> PubCallbackPacket:
    """Raises `CodecError`."""
    raw, at = read_binary(body, 0, len(body))
    text = text_of(raw)
    if not text.startswith("{") or not text.endswith("}") or "}" in text[:-1]:
        raise malformed("callbacks stand in braces")
    names = tuple(unquote(one) for one in text[1:-1].split('"') if one)
    if len(names) > MAX_CALLBACKS:
        raise malformed(f"a packet has at most {MAX_CALLBACKS} callbacks")
    inner = body[at:]
    if len(inner) < 2 or inner[0] >> 4 != PacketType.PUBLISH:
        raise malformed("behind the callbacks stands a PUBLISH")
    return PubCallbackPacket(names, inner)


class ExtendedClient:
    """With which version a client of the extension asks next, and where."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.level = Level.EXTENDED

    def refused(self, answer: ConnackPacket | None) -> None:
        """`answer` is None when the broker closed the connection without one."""
        if answer is None or answer.reason == ReturnCode.UNACCEPTABLE_VERSION:
            if self.level == Level.V31:
                raise CodecError(ReasonCode.UNSUPPORTED_VERSION, "the broker speaks no MQTT 3.1 either")
            self.level = Level.V31

    def renewed(self, answer: ConnackPacket) -> bool:
        """Whether it is sent to another broker, and whether it must subscribe there: see `subscribes`."""
        if self.level != Level.EXTENDED or answer.reason not in RENEWALS or not answer.address:
            return False
        self.address = answer.address
        return True

    @staticmethod
    def subscribes(answer: ConnackPacket) -> bool:
        """Whether its topics are not active at the other broker yet."""
        return answer.reason != ReturnCode.RENEW_ACTIVE

"""Strings, topics and filters: what may stand in them. Sans-I/O."""

import re
from typing import Final

from gateway.protocols.mqtt.numbers import ReasonCode
from gateway.protocols.mqtt.packets import CodecError, malformed, protocol_error

SHARED: Final = "$share/"
MAX_LEVELS: Final = 200
"""Of a topic or a filter: a tree of filters is as deep as the deepest."""
_PLANES: Final = "".join(f"{chr(plane * 0x10000 + 0xFFFE)}{chr(plane * 0x10000 + 0xFFFF)}" for plane in range(17))
_FORBIDDEN: Final = re.compile(f"[\x00-\x1f\x7f-\x9f\ufdd0-\ufdef{_PLANES}]")


def text_of(raw: bytes) -> str:
    """UTF-8 without control characters and non-characters. Raises `CodecError`."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise malformed("a string is no UTF-8") from None
    if _FORBIDDEN.search(text) is not None:
        raise malformed("a string has a control character or a non-character in it")
    return text


def topic_of(raw: bytes) -> str:
    """The name of a topic, which has no wildcards. Raises `CodecError`."""
    topic = text_of(raw)
    if "+" in topic or "#" in topic:
        raise malformed("a topic's name has a wildcard in it")
    if topic.count("/") >= MAX_LEVELS:
        raise malformed(f"a topic has at most {MAX_LEVELS} levels")
    return topic


def check_filter(wanted: str) -> None:
    """Raises `CodecError` for what is no filter, also behind `$share/NAME/`."""
    if not wanted:
        raise malformed("a filter is empty")
    levels = wanted.split("/")
    if len(levels) > MAX_LEVELS:
        raise malformed(f"a filter has at most {MAX_LEVELS} levels")
    for place, level in enumerate(levels):
        if "#" in level and (level != "#" or place != len(levels) - 1):
            raise malformed("# stands alone, at the end of a filter")
        if "+" in level and level != "+":
            raise malformed("+ stands alone on its level of a filter")
    if wanted == "$share" or wanted.startswith(SHARED):
        share, _, behind = wanted.removeprefix(SHARED).partition("/")
        if not share or "+" in share or "#" in share or not behind:
            raise protocol_error("a shared subscription is $share/NAME/FILTER, and its name has no wildcards")


def split_shared(wanted: str) -> tuple[str, str]:
    """The name of the share, empty for none, and the filter."""
    if not wanted.startswith(SHARED):
        return "", wanted
    share, _, behind = wanted.removeprefix(SHARED).partition("/")
    return share, behind


def check_response_topic(topic: str) -> None:
    """Raises `CodecError`."""
    if not topic or "+" in topic or "#" in topic:
        raise CodecError(ReasonCode.PROTOCOL_ERROR, "a response topic is empty or has a wildcard in it")

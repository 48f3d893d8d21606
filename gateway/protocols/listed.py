"""The protocols that a gateway knows: its own, a line each, and those that others have installed beside it."""

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from gateway.protocols.chat.protocol import CHAT
from gateway.protocols.descriptor import ProtocolDescriptor
from gateway.protocols.mqtt.protocol import MQTT
from gateway.protocols.psirp.protocol import PSIRP
from gateway.protocols.rest.protocol import REST
from gateway.protocols.websub.protocol import WEBSUB

Descriptor = ProtocolDescriptor[Any]

BUILT_IN: tuple[Descriptor, ...] = (
    PSIRP,
    WEBSUB,
    REST,
    CHAT,
    MQTT,
)
"""In this order they are made ready, in the opposite one they open their doors: nothing comes in before somebody can
take it."""

GROUP = "psph.protocols"
"""Packages name their descriptors as entry points of this group."""


class ProtocolMissingError(ValueError):
    """A protocol from outside that cannot be had; the text says why."""


def listed(named: Sequence[str] = ()) -> tuple[Descriptor, ...]:
    """Every protocol: the built-in ones, those of installed packages, and those that a configuration names as
    `package.module:DESCRIPTOR`. Raises `ProtocolMissingError`."""
    found = list(BUILT_IN)
    for place in (*(point.value for point in entry_points(group=GROUP)), *named):
        one = _loaded(place)
        if one in found:
            continue
        if any(one.label == other.label for other in found):
            raise ProtocolMissingError(f"{place}: there is a protocol {one.label!r} already")
        found.append(one)
    return tuple(found)


def _loaded(place: str) -> Descriptor:
    module, colon, name = place.partition(":")
    if not colon or not name:
        raise ProtocolMissingError(f"expected package.module:DESCRIPTOR, not {place[:200]!r}")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ProtocolMissingError(f"{place}: {error}") from error
    if not isinstance(found, ProtocolDescriptor):
        raise ProtocolMissingError(f"{place} is no ProtocolDescriptor")
    return found

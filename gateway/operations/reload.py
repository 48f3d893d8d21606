"""What a new configuration changes in a gateway that runs, and what of it must wait for a restart."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from gateway.gateway import Gateway, GatewayConfig
from gateway.protocols.descriptor import LiveSetting

T = TypeVar("T")

LIVE = (
    LiveSetting("access"),
    # Other files take the place of files; a port does not change from http to https under its users, or back.
    LiveSetting("admin.tls", may_begin=False, may_end=False),
    LiveSetting("web.tls", may_begin=False, may_end=False),
    LiveSetting("admin.viewer_tokens"),
    LiveSetting("admin.operator_tokens"),
)
"""Settings that can be replaced while requests are under way: each is looked at once in a request. Protocols have
their own."""


@dataclass(frozen=True, slots=True)
class ReloadPlan:
    changed: tuple[str, ...]
    """In force at once."""
    waiting: tuple[str, ...]
    """In force after a restart."""

    def lines(self) -> list[str]:
        said = []
        if self.changed:
            said.append(f"reloaded: {', '.join(self.changed)}")
        if self.waiting:
            said.append(f"needs a restart, unchanged for now: {', '.join(self.waiting)}")
        return said or ["reloaded: nothing has changed, certificates were looked at"]


def plan_reload(before: GatewayConfig, after: GatewayConfig) -> ReloadPlan:
    """Names only, never values: some are secrets."""
    whole = {one.path for one in LIVE} | {f"{one.section}.{live.path}" for one in after.known for live in one.live}
    different = set(_differences("", before, after, whole))
    waiting = set(_differences("", in_force(before, after), after, whole))
    return ReloadPlan(tuple(sorted(different - waiting)), tuple(sorted(different & waiting)))


def apply_reload(gateway: Gateway, before: GatewayConfig, after: GatewayConfig) -> ReloadPlan:
    """Put into force what can be, and say what cannot."""
    found = plan_reload(before, after)
    now = in_force(before, after)
    gateway.access.rules = now.access
    for label, protocol in gateway.core.protocols.items():
        protocol.take_up(now.protocols[label])
    if gateway.admin is not None and now.admin is not None:
        gateway.admin.take_up(None if after.admin is None else after.admin.tls)
        if now.admin.viewer_tokens + now.admin.operator_tokens:
            gateway.admin.take_up_tokens(now.admin.viewer_tokens, now.admin.operator_tokens)
    if gateway.web is not None:
        gateway.web.take_up(None if after.web is None else after.web.tls)
    return found


def in_force(before: GatewayConfig, after: GatewayConfig) -> GatewayConfig:
    """The configuration before, with what could be replaced from the one after."""
    # A port does not lose all its tokens while it runs: everybody would be let in, perhaps from other machines.
    keeps_tokens = after.admin is None or not after.admin.viewer_tokens + after.admin.operator_tokens
    live = [one for one in LIVE if not (keeps_tokens and one.path.endswith("_tokens"))]
    protocols = dict(before.protocols)
    for one in before.known:
        if one.label in protocols and one.label in after.protocols:
            protocols[one.label] = replaced(protocols[one.label], after.protocols[one.label], one.live)
    return dataclasses.replace(replaced(before, after, live), protocols=protocols)


def replaced(before: T, after: T, live: Sequence[LiveSetting]) -> T:
    """A configuration with the live settings of another one."""
    for one in live:
        before = _set(before, after, one.path.split("."), one)
    return before


def _set(before: T, after: T, path: list[str], setting: LiveSetting) -> T:
    if before is None or after is None:
        return before
    name = path[0]
    ours, theirs = getattr(before, name), getattr(after, name)
    if path[1:]:
        value = _set(ours, theirs, path[1:], setting)
    elif (not ours and theirs and not setting.may_begin) or (ours and not theirs and not setting.may_end):
        return before
    else:
        value = theirs
    changed: Any = dataclasses.replace(before, **{name: value})  # type: ignore[type-var]
    result: T = changed
    return result


def _differences(name: str, before: object, after: object, whole: set[str]) -> Iterator[str]:
    """The settings that differ, by the sections of the file and the names of the configuration; those in `whole` are
    not taken apart."""
    if before == after:
        return
    if isinstance(before, GatewayConfig) and isinstance(after, GatewayConfig):
        names = {one.label: one.section for one in (*before.known, *after.known)}
        for label in sorted({*before.protocols, *after.protocols}):
            yield from _differences(names[label], before.protocols.get(label), after.protocols.get(label), whole)
        before, after = (dataclasses.replace(one, protocols={}) for one in (before, after))
    if name not in whole and type(before) is type(after):
        inner = _fields(before)
        if inner:
            for field in inner:
                deeper = f"{name}.{field}" if name else field
                yield from _differences(deeper, getattr(before, field), getattr(after, field), whole)
            return
    yield name


def _fields(value: object) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    return value.__struct_fields__ if isinstance(value, msgspec.Struct) else ()

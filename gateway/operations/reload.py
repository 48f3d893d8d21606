"""What a new configuration changes in a gateway that runs, and what of it must wait for a restart."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from gateway.admin.config import AdminConfig
from gateway.gateway import Gateway, GatewayConfig
from gateway.web.server import WebConfig
from push_hub.hub import HubConfig
from serving.tls import TlsFiles

LIVE = (
    "access",
    "hub.tls",
    "admin.tls",
    "web.tls",
    "admin.viewer_tokens",
    "admin.operator_tokens",
    "web.streams.tokens",
    "hub.server.per_client",
    "hub.server.per_topic",
    "hub.server.max_body",
    "hub.server.trusted_proxies",
    "hub.server.publisher_tokens",
)
"""Settings that can be replaced while requests are under way: each is looked at once in a request."""

_Port = HubConfig | AdminConfig | WebConfig | None


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
    different = sorted(set(_differences("", before, after)))
    changed = tuple(name for name in different if _is_live(name, before, after))
    return ReloadPlan(changed, tuple(name for name in different if name not in changed))


def apply_reload(gateway: Gateway, before: GatewayConfig, after: GatewayConfig) -> ReloadPlan:
    """Put into force what can be, and say what cannot."""
    found = plan_reload(before, after)
    gateway.access.rules = after.access
    gateway.hub.reconfigure(in_force(before, after).hub.server, after.hub.tls)
    if gateway.admin is not None:
        gateway.admin.take_up(_tls(after.admin))
        if after.admin is not None and _admin_tokens(after):
            gateway.admin.take_up_tokens(after.admin.viewer_tokens, after.admin.operator_tokens)
    if gateway.web is not None:
        gateway.web.take_up(_tls(after.web))
        if _web_tokens(after):
            gateway.web.streams.take_up_tokens(_web_tokens(after))
    return found


def in_force(before: GatewayConfig, after: GatewayConfig) -> GatewayConfig:
    """The configuration before, with what could be replaced from the one after."""
    ours, theirs = before.hub.server, after.hub.server
    server = dataclasses.replace(
        ours,
        per_client=theirs.per_client,
        per_topic=theirs.per_topic,
        max_body=theirs.max_body,
        trusted_proxies=theirs.trusted_proxies,
        publisher_tokens=theirs.publisher_tokens,
    )
    hub = dataclasses.replace(before.hub, server=server, tls=_next_tls(before.hub, after.hub))
    admin, web = before.admin, before.web
    if admin is not None:
        admin = dataclasses.replace(admin, tls=_next_tls(admin, after.admin))
        if after.admin is not None and _admin_tokens(after):
            viewers, operators = after.admin.viewer_tokens, after.admin.operator_tokens
            admin = dataclasses.replace(admin, viewer_tokens=viewers, operator_tokens=operators)
    if web is not None:
        web = dataclasses.replace(web, tls=_next_tls(web, after.web))
        if _web_tokens(after):
            web = dataclasses.replace(web, streams=dataclasses.replace(web.streams, tokens=_web_tokens(after)))
    return dataclasses.replace(before, access=after.access, hub=hub, admin=admin, web=web)


def _admin_tokens(config: GatewayConfig) -> tuple[str, ...]:
    """A port does not lose all its tokens while it runs: everybody would be let in, perhaps from other machines."""
    return () if config.admin is None else config.admin.viewer_tokens + config.admin.operator_tokens


def _web_tokens(config: GatewayConfig) -> tuple[str, ...]:
    return () if config.web is None else config.web.streams.tokens


def _tls(port: _Port) -> TlsFiles | None:
    return None if port is None else port.tls


def _next_tls(before: _Port, after: _Port) -> TlsFiles | None:
    """Other files take the place of files; a port does not change from http to https under its users, or back."""
    ours, theirs = _tls(before), _tls(after)
    return ours if ours is None or theirs is None else theirs


def _is_live(name: str, before: GatewayConfig, after: GatewayConfig) -> bool:
    ports: dict[str, tuple[_Port, _Port]] = {
        "hub.tls": (before.hub, after.hub),
        "admin.tls": (before.admin, after.admin),
        "web.tls": (before.web, after.web),
    }
    if name in ports and None in map(_tls, ports[name]):
        return False
    if (name.startswith("admin.") and name.endswith("_tokens") and not _admin_tokens(after)) or (
        name == "web.streams.tokens" and not _web_tokens(after)
    ):
        return False
    return any(name == live or name.startswith(f"{live}.") for live in LIVE)


def _differences(name: str, before: object, after: object) -> Iterator[str]:
    if before == after:
        return
    if name not in LIVE and type(before) is type(after):
        inner = _fields(before)
        if inner:
            for field in inner:
                deeper = f"{name}.{field}" if name else field
                yield from _differences(deeper, getattr(before, field), getattr(after, field))
            return
    yield name


def _fields(value: object) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return tuple(field.name for field in dataclasses.fields(value))
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    return ()

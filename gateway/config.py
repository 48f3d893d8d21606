"""A gateway's configuration: one typed TOML file, environment variables over it, checked whole before anything starts.

Every key is in a section. `PSPH_SECTION__KEY` in the environment replaces one (`PSPH_HUB__LISTEN=0.0.0.0:80`); its
value is written as in TOML, and what is not TOML is taken as text. Paths are relative to the file. Every error names
the key.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from gateway.access import AccessRules
from gateway.access.config import AccessConfigError, AccessSection, access_of
from gateway.admin.config import AdminConfig, AdminSection, from_section
from gateway.bootstrapping.config import BootstrappingConfig
from gateway.bootstrapping.settings import BootstrappingSection, bootstrapping_config
from gateway.control import ControlConfig
from gateway.discovery.part import DiscoveryConfig
from gateway.discovery.section import DiscoveryKeyError, DiscoverySection, discovery_config
from gateway.gateway import GatewayConfig
from gateway.scope_keys import ScopeKeys
from gateway.tls_section import TlsSection
from gateway.tracing import TracesSection, traces_config
from gateway.web.sections import ChatSection, SectionError, WebSection, web_config
from gateway.web.server import WebConfig
from identifiers import HashName, Naming, NoZoneError, Scheme, TopicError, split_user, zone_of
from identifiers.topic import canonical_host
from psirp_stack.authentication.keys import KeyFileError
from psirp_stack.node.config import MAX_FILE_BYTES, NodeConfigError, NodeFile, read_secret
from psirp_stack.node.config import check as check_node
from push_hub.bounds import SubscriptionBounds
from push_hub.canary import CanaryConfig
from push_hub.delivery import QueueLimits, Retention
from push_hub.diagnostics import DiagnosticsConfig
from push_hub.hub import HubConfig
from push_hub.intake import IntakeConfig
from push_hub.protocol.leases import LeasePolicy
from push_hub.protocol.urls import UrlError, normalised
from push_hub.server import ServerConfig
from push_hub.sse import HubStreamConfig
from push_hub.verifier import IntentVerifierConfig
from serving.limits import Rate
from serving.tls import TlsError, TlsFiles, TlsPort
from storage.private import PrivateFileError, read_secret_lines

PREFIX = "PSPH_"
BETWEEN = "__"
_AT = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<place>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`$")

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0.0)]


class ConfigError(ValueError):
    """A configuration that cannot be used; the text names the file and the key."""


class GatewaySection(Struct, frozen=True, forbid_unknown_fields=True):
    """Who this gateway is."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z._-]+$")] = "gateway"
    domain: str | None = None
    """The domain of its people: they are user@domain."""
    zones: tuple[str, ...] = ()
    """DNS zones that it answers for when other gateways ask for a topic there."""


class StoreSection(Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(min_length=1)] = "var/gateway"


class CanarySection(Struct, frozen=True, forbid_unknown_fields=True):
    enabled: bool = True
    interval: Seconds = 60.0
    deadline: Seconds = 30.0


class HubSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP side."""

    listen: str = "127.0.0.1:8080"
    public_url: str | None = None
    allow_private: bool = False
    topics: tuple[str, ...] = ()
    only_own_self: bool = False
    poll: bool = False
    poll_min: Seconds = 300.0
    poll_max: Seconds = 86_400.0
    trusted_proxies: tuple[str, ...] = ()
    publisher_tokens_file: str | None = None
    operator_token_file: str | None = None
    stop_grace: Seconds = 5.0
    hosts: dict[str, str] = {}
    canary: CanarySection = CanarySection()
    tls: TlsSection | None = None


class NamingSection(Struct, frozen=True, forbid_unknown_fields=True):
    scheme: Scheme = Scheme.FQDN_PATH
    hash: HashName = HashName.SHA1


class NetworkSection(Struct, frozen=True, forbid_unknown_fields=True):
    attach: Annotated[str, Meta(min_length=1)] | None = None
    """The socket of a node that runs already. Without it, the gateway runs the node of [node]."""
    sealed_file: Annotated[str, Meta(min_length=1)] | None = None
    """What is sealed from gateway to gateway, and with which keys."""


class LimitsSection(Struct, frozen=True, forbid_unknown_fields=True):
    """What strangers may hold, and how fast they may ask."""

    subscriptions_per_subscriber: Count = 10_000
    lease_min: Count = LeasePolicy().minimum
    lease_default: Count = LeasePolicy().default
    lease_max: Count = LeasePolicy().maximum
    connections: Count = ServerConfig().max_connections
    connections_per_client: Count = ServerConfig().connections_per_client
    request_bytes: Count = ServerConfig().max_body
    document_bytes: Count = IntakeConfig().max_body_bytes
    requests_per_client: Seconds = ServerConfig().per_client.per_second
    requests_per_client_burst: Seconds = ServerConfig().per_client.burst
    requests_per_topic: Seconds = ServerConfig().per_topic.per_second
    requests_per_topic_burst: Seconds = ServerConfig().per_topic.burst
    pending_checks: Count = IntentVerifierConfig().max_pending
    subscriptions: Count = SubscriptionBounds().in_all
    subscriptions_per_network: Count = SubscriptionBounds().per_network
    subscriptions_per_address: Count = SubscriptionBounds().per_address
    pending_per_network: Count = SubscriptionBounds().pending_per_network
    new_subscriptions: Seconds = ServerConfig().new_subscriptions.per_second
    new_subscriptions_burst: Seconds = ServerConfig().new_subscriptions.burst
    waiting_topics: Count = IntakeConfig().max_waiting_topics
    fetches: Count = IntakeConfig().max_fetches
    deliveries: Count = QueueLimits().in_flight
    deliveries_per_host: Count = QueueLimits().per_host
    delivery_timeout: Seconds = QueueLimits().timeout
    streams: Count = HubStreamConfig().max_streams
    kept_publications: Count = Retention().publications
    kept_bytes: Count = Retention().bytes
    kept_age: Seconds = Retention().age


class GatewayFile(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file."""

    gateway: GatewaySection = GatewaySection()
    store: StoreSection = StoreSection()
    hub: HubSection = HubSection()
    naming: NamingSection = NamingSection()
    network: NetworkSection = NetworkSection()
    node: dict[str, object] | None = None
    """Read by `psirp_stack.node.config`: the same keys as in the file of `psph node`."""
    limits: LimitsSection = LimitsSection()
    discovery: DiscoverySection = DiscoverySection()
    web: WebSection = WebSection()
    chat: ChatSection = ChatSection()
    bootstrapping: BootstrappingSection = BootstrappingSection()
    traces: TracesSection = TracesSection()
    admin: AdminSection = AdminSection()
    access: AccessSection = AccessSection()


def load(path: Path, environment: Mapping[str, str] | None = None) -> GatewayConfig:
    """Read a file, put the environment over it, check everything. Raises `ConfigError`."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    return check(document, path.parent, str(path), os.environ if environment is None else environment)


def check(
    document: dict[str, object],
    folder: Path,
    source: str = "configuration",
    environment: Mapping[str, str] | None = None,
) -> GatewayConfig:
    """A document as what a gateway is made of. Raises `ConfigError`."""
    overridden = _override(document, environment or {})
    try:
        file = msgspec.convert(document, GatewayFile)
        return _Builder(file, folder).build()
    except msgspec.ValidationError as error:
        raise ConfigError(_named(source, *_place(str(error)), overridden)) from None
    except _KeyWrongError as error:
        raise ConfigError(_named(source, error.key, error.what, overridden)) from None


class _KeyWrongError(Exception):
    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key
        self.what = what


# From the document to what a gateway is made of.


class _Builder:
    def __init__(self, file: GatewayFile, folder: Path) -> None:
        self._file = file
        self._folder = folder

    def build(self) -> GatewayConfig:
        file = self._file
        data = self._folder / file.store.path
        node = self._node(data)
        attach = None if file.network.attach is None else self._folder / file.network.attach
        if (node is None) == (attach is None):
            raise _KeyWrongError("network.attach", "expected either this, or a section [node], and not both")
        return GatewayConfig(
            data=data,
            hub=self._hub(data),
            node=node,
            attach=attach,
            naming=Naming(file.naming.scheme, file.naming.hash),
            control=ControlConfig(
                max_per_subscriber=file.limits.subscriptions_per_subscriber, max_lease=float(file.limits.lease_max)
            ),
            name=file.gateway.name,
            domain=self._domain(),
            zones=self._zones(),
            discovery=self._discovery(),
            web=self._web(),
            bootstrapping=self._bootstrapping(),
            traces=traces_config(file.traces, self._folder),
            admin=self._admin(),
            access=self._access(),
            scope_keys=self._scope_keys(),
        )

    def _scope_keys(self) -> ScopeKeys:
        name = self._file.network.sealed_file
        if name is None:
            return ScopeKeys()
        try:
            return ScopeKeys.load(self._folder / name)
        except KeyFileError as error:
            raise _KeyWrongError("network.sealed_file", str(error)) from None

    def _discovery(self) -> DiscoveryConfig:
        try:
            return discovery_config(self._file.discovery, self._folder, self._domain())
        except DiscoveryKeyError as error:
            raise _KeyWrongError(error.key, str(error)) from None

    def _web(self) -> WebConfig | None:
        try:
            return web_config(self._file.web, self._file.chat, self._domain(), _address, self._secrets, self._tls)
        except SectionError as error:
            raise _KeyWrongError(error.key, error.what) from None

    def _bootstrapping(self) -> BootstrappingConfig:
        try:
            return bootstrapping_config(self._file.bootstrapping, self._zones())
        except ValueError as error:
            key, _, what = str(error).partition(": ")
            raise _KeyWrongError(f"bootstrapping.{key}", what) from None

    def _admin(self) -> AdminConfig | None:
        section = self._file.admin
        for place, peer in enumerate(section.peers):
            try:
                normalised(peer)
            except UrlError as error:
                raise _KeyWrongError(f"admin.peers[{place}]", f"{peer[:200]!r} {error}") from None
        try:
            return from_section(section, _address, self._secrets, self._tls)
        except ValueError as error:
            raise _KeyWrongError("admin.listen", str(error)) from None

    def _access(self) -> AccessRules:
        try:
            return access_of(self._file.access)
        except AccessConfigError as error:
            raise _KeyWrongError(error.key, error.what) from None

    def _tls(self, key: str, section: TlsSection | None) -> TlsFiles | None:
        if section is None:
            return None
        files = TlsFiles(self._folder / section.certificate, self._folder / section.key, section.look_every)
        try:
            TlsPort(files)
        except TlsError as error:
            raise _KeyWrongError(key, str(error)) from None
        return files

    def _domain(self) -> str | None:
        domain = self._file.gateway.domain
        if domain is None:
            return None
        try:
            return split_user(f"someone@{domain}")[1]
        except TopicError as error:
            raise _KeyWrongError("gateway.domain", f"{domain[:80]!r} is no domain: {error}") from None

    def _zones(self) -> tuple[str, ...]:
        zones = []
        for place, name in enumerate(self._file.gateway.zones):
            key = f"gateway.zones[{place}]"
            try:
                zone = zone_of(split_user(f"someone@{name}")[1]).domain
            except (NoZoneError, TopicError) as error:
                raise _KeyWrongError(key, str(error)) from None
            if zone != name.lower():
                raise _KeyWrongError(key, f"{name!r} is below the zone {zone!r}: name that")
            zones.append(zone)
        return tuple(zones)

    def _hub(self, data: Path) -> HubConfig:
        hub, limits = self._file.hub, self._file.limits
        host, port = _address("hub.listen", hub.listen)
        for key, urls in (("hub.topics", hub.topics), ("hub.public_url", (hub.public_url,) if hub.public_url else ())):
            for url in urls:
                try:
                    normalised(url)
                except UrlError as error:
                    raise _KeyWrongError(key, f"{url[:200]!r} {error}") from None
        for proxy in hub.trusted_proxies:
            try:
                ipaddress.ip_address(proxy)
            except ValueError:
                raise _KeyWrongError("hub.trusted_proxies", f"expected IP addresses, not {proxy[:80]!r}") from None
        try:
            leases = LeasePolicy(limits.lease_min, limits.lease_default, limits.lease_max)
        except ValueError as error:
            raise _KeyWrongError("limits.lease_default", str(error)) from None
        operator = self._secrets("hub.operator_token_file", hub.operator_token_file)
        return HubConfig(
            data=data / "hub",
            host=host,
            port=port,
            public_url=hub.public_url,
            allow_private=hub.allow_private,
            hosts=_hosts(hub.hosts),
            topics=hub.topics,
            only_own_self=hub.only_own_self,
            intake=IntakeConfig(
                max_waiting_topics=limits.waiting_topics,
                max_fetches=limits.fetches,
                max_body_bytes=limits.document_bytes,
                poll=hub.poll,
                poll_min=hub.poll_min,
                poll_max=hub.poll_max,
            ),
            server=ServerConfig(
                max_body=limits.request_bytes,
                max_connections=limits.connections,
                connections_per_client=limits.connections_per_client,
                per_client=Rate(limits.requests_per_client, limits.requests_per_client_burst),
                per_topic=Rate(limits.requests_per_topic, limits.requests_per_topic_burst),
                new_subscriptions=Rate(limits.new_subscriptions, limits.new_subscriptions_burst),
                trusted_proxies=frozenset(hub.trusted_proxies),
                publisher_tokens=self._secrets("hub.publisher_tokens_file", hub.publisher_tokens_file),
            ),
            verifier=IntentVerifierConfig(max_pending=limits.pending_checks, leases=leases),
            bounds=SubscriptionBounds(
                limits.subscriptions,
                limits.subscriptions_per_network,
                limits.subscriptions_per_address,
                limits.pending_per_network,
            ),
            deliveries=QueueLimits(
                in_flight=limits.deliveries, per_host=limits.deliveries_per_host, timeout=limits.delivery_timeout
            ),
            retention=Retention(limits.kept_publications, limits.kept_bytes, limits.kept_age),
            streams=HubStreamConfig(max_streams=limits.streams),
            diagnostics=DiagnosticsConfig(operator_token=operator[0] if operator else None),
            canary=CanaryConfig(hub.canary.enabled, hub.canary.interval, hub.canary.deadline),
            stop_grace=hub.stop_grace,
            tls=self._tls("hub.tls", hub.tls),
        )

    def _node(self, data: Path) -> NodeFile | None:
        """The gateway's own node, with paths that no longer depend on where the file is."""
        if self._file.node is None:
            return None
        try:
            node = check_node(self._file.node)
        except NodeConfigError as error:
            what, key = _place(str(error).removeprefix("configuration: "))[::-1]
            raise _KeyWrongError(f"node.{key}" if key else "node", what) from None
        if node.socket is not None:
            raise _KeyWrongError("node.socket", "a gateway's own node listens beside the store: leave this out")
        domain, keys = node.domain, node.keys
        for key, name in (
            ("node.domain.graph_file", domain.graph_file),
            ("node.keys.signing", keys.signing),
            ("node.keys.trusted", keys.trusted),
            ("node.keys.grant", keys.grant),
            ("node.domain.key", domain.key),
        ):
            if name is not None and not (self._folder / name).exists():
                raise _KeyWrongError(key, f"{self._folder / name} is not there")
        if domain.secret_file is not None:
            try:
                read_secret(self._folder / domain.secret_file)
            except NodeConfigError as error:
                raise _KeyWrongError("node.domain.secret_file", str(error)) from None
        return msgspec.structs.replace(
            node,
            # Without a store of its own, a node that is killed would forget what was acknowledged to publishers.
            data=str((self._folder / node.data if node.data is not None else data / "node").absolute()),
            domain=msgspec.structs.replace(
                domain,
                secret_file=self._absolute(domain.secret_file),
                graph_file=self._absolute(domain.graph_file),
                key=self._absolute(domain.key),
            ),
            keys=msgspec.structs.replace(
                keys,
                signing=self._absolute(keys.signing),
                trusted=self._absolute(keys.trusted),
                grant=self._absolute(keys.grant),
            ),
        )

    def _absolute(self, name: str | None) -> str | None:
        return None if name is None else str((self._folder / name).absolute())

    def _secrets(self, key: str, name: str | None) -> tuple[str, ...]:
        """The lines of a file that nobody else may read."""
        if name is None:
            return ()
        try:
            return read_secret_lines(self._folder / name)
        except PrivateFileError as error:
            raise _KeyWrongError(key, str(error)) from None


def _hosts(hosts: dict[str, str]) -> tuple[tuple[str, str], ...]:
    for name, address in hosts.items():
        try:
            canonical_host(name)
            ipaddress.IPv4Address(address)
        except (TopicError, ValueError) as error:
            raise _KeyWrongError("hub.hosts", f'expected NAME = "IPv4 ADDRESS": {error}') from None
    return tuple((canonical_host(name), address) for name, address in hosts.items())


def _address(key: str, text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise _KeyWrongError(key, f"expected ADDRESS:PORT (port 0 for a free one), not {text[:80]!r}")
    try:
        ipaddress.ip_address(host)
    except ValueError:
        raise _KeyWrongError(key, f"expected an IP address before the port, not {host[:80]!r}") from None
    return host, int(port)


# The environment, and errors that name the key.


def _override(document: dict[str, object], environment: Mapping[str, str]) -> dict[str, str]:
    """Put variables into the document; says which key came from which variable."""
    overridden: dict[str, str] = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(PREFIX) or BETWEEN not in variable:
            continue
        path = [part.lower() for part in variable.removeprefix(PREFIX).split(BETWEEN)]
        place: dict[str, object] = document
        for part in path[:-1]:
            below = place.setdefault(part, {})
            if not isinstance(below, dict):
                raise ConfigError(f"{variable}: `{part}` is no section")
            place = below
        place[path[-1]] = _value(text)
        overridden[".".join(path)] = variable
    return overridden


def _value(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def _place(message: str) -> tuple[str, str]:
    """Key and complaint of a message of msgspec's."""
    found = _AT.match(message)
    what, key = message, ""
    if found is not None:
        what, key = found["what"], (found["place"] or "").removeprefix(".")
    for pattern, text in ((_UNKNOWN, "there is no such key"), (_MISSING, "this key is missing")):
        field = pattern.match(what)
        if field is not None:
            return f"{key}.{field['field']}".removeprefix("."), text
    if not key and (found := re.match(r"^(.*?) - at `([^`$]+)`$", what)):  # a message that was cleaned up already
        what, key = found[1], found[2]
        return _place(f"{what} - at `$.{key}`")
    return key, what[:1].lower() + what[1:]


def _named(source: str, key: str, what: str, overridden: Mapping[str, str]) -> str:
    variable = next((name for place, name in overridden.items() if key == place or key.startswith(f"{place}[")), None)
    where = f"{source}: {key}" if key else source
    return f"{where}: {what}" + (f" (set by {variable})" if variable is not None else "")

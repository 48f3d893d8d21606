"""A gateway's configuration: one typed TOML file, environment variables over it, checked whole before anything starts.

Every key is in a section. `PSPH_SECTION__KEY` in the environment replaces one (`PSPH_HUB__LISTEN=0.0.0.0:80`); its
value is written as in TOML, and what is not TOML is taken as text. Paths are relative to the file. Every error names
the key. Sections of protocols are theirs: see `gateway.protocols.descriptor`.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from msgspec import Meta, Struct

from gateway.access import AccessRules
from gateway.access.config import AccessConfigError, AccessSection, access_of
from gateway.admin.config import AdminConfig, AdminSection, from_section
from gateway.bootstrapping.config import BootstrappingConfig
from gateway.bootstrapping.settings import BootstrappingSection, bootstrapping_config
from gateway.control import ControlConfig
from gateway.core import namespaces_of
from gateway.discovery.part import DiscoveryConfig
from gateway.discovery.section import DiscoveryKeyError, DiscoverySection, discovery_config
from gateway.gateway import GatewayConfig
from gateway.protocols.listed import Descriptor, ProtocolMissingError, listed
from gateway.sections import SectionError, Sections, address, decoded
from gateway.tracing import TracesSection, traces_config
from gateway.web.section import WebSection, web_config
from identifiers import HashName, Naming, NoZoneError, Scheme, TopicError, split_user, zone_of
from psirp_stack.node.config import MAX_FILE_BYTES
from push_hub.protocol.leases import LeasePolicy
from push_hub.protocol.urls import UrlError, normalised
from storage.memory import LEAST_MIB, MIB, USUAL_MIB, MemoryBudget

PREFIX = "PSPH_"
BETWEEN = "__"

Count = Annotated[int, Meta(ge=1)]


class ConfigError(ValueError):
    """A configuration that cannot be used; the text names the file and the key."""


class GatewaySection(Struct, frozen=True, forbid_unknown_fields=True):
    """Who this gateway is."""

    name: Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z._-]+$")] = "gateway"
    domain: str | None = None
    """The domain of its people: they are user@domain."""
    zones: tuple[str, ...] = ()
    """DNS zones that it answers for when other gateways ask for a topic there."""
    protocols: tuple[str, ...] = ()
    """Protocols from outside, as package.module:DESCRIPTOR."""
    memory_mb: Annotated[int, Meta(ge=LEAST_MIB)] = USUAL_MIB
    """What caches, queues and publications in pieces may take together, beside the program itself."""


class StoreSection(Struct, frozen=True, forbid_unknown_fields=True):
    path: Annotated[str, Meta(min_length=1)] = "var/gateway"


class NamingSection(Struct, frozen=True, forbid_unknown_fields=True):
    scheme: Scheme = Scheme.FQDN_PATH
    hash: HashName = HashName.SHA1


class SessionLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """What a subscriber of any protocol may hold."""

    subscriptions_per_subscriber: Count = ControlConfig().max_per_subscriber
    lease_max: Count = LeasePolicy().maximum


CORE: Mapping[str, type[Struct]] = {
    "gateway": GatewaySection,
    "store": StoreSection,
    "naming": NamingSection,
    "limits": SessionLimits,
    "web": WebSection,
    "discovery": DiscoverySection,
    "bootstrapping": BootstrappingSection,
    "traces": TracesSection,
    "admin": AdminSection,
    "access": AccessSection,
}
"""Sections that are no protocol's; protocols may have keys of their own in them."""


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
        return _built(document, folder)
    except SectionError as error:
        raise ConfigError(_named(source, error.key, error.what, overridden)) from None


def sections_of(protocols: Sequence[Descriptor]) -> dict[str, list[type[Struct] | None]]:
    """Every section, with the keys of all to whom it belongs."""
    found: dict[str, list[type[Struct] | None]] = {name: [kind] for name, kind in CORE.items()}
    for one in protocols:
        for name, kind in one.sections.items():
            found.setdefault(name, []).append(kind)
    return found


def _check_keys(document: dict[str, object], sections: Sections, protocols: Sequence[Descriptor]) -> None:
    """Names and types first: what a value means is looked at when all of them are right."""
    known = sections_of(protocols)
    for name, given in document.items():
        kinds = known.get(name)
        if kinds is None:
            raise SectionError(name, "there is no such key")
        keys = decoded(given, dict[str, object], name)
        declared = {field for kind in kinds if kind is not None for field in kind.__struct_encode_fields__}
        unknown = next((key for key in keys if key not in declared), None)
        if unknown is not None and None not in kinds:
            raise SectionError(f"{name}.{unknown}", "there is no such key")
        for kind in kinds:
            if kind is not None:
                sections.read(name, kind)


# From the document to what a gateway is made of.


def _built(document: dict[str, object], folder: Path) -> GatewayConfig:
    sections = Sections(document, folder, folder, None)
    own = sections.read("gateway", GatewaySection)
    try:
        known = listed(own.protocols)
    except ProtocolMissingError as error:
        raise SectionError("gateway.protocols", str(error)) from None
    _check_keys(document, sections, known)
    sections.data = data = folder / sections.read("store", StoreSection).path
    sections.domain = domain = _domain(own)
    sections.memory = MemoryBudget(own.memory_mb * MIB)
    zones = _zones(own)
    naming, limits = sections.read("naming", NamingSection), sections.read("limits", SessionLimits)
    protocols = {one.label: config for one in known if (config := one.configured(sections)) is not None}
    return GatewayConfig(
        data,
        protocols,
        known,
        naming=Naming(naming.scheme, naming.hash),
        control=ControlConfig(
            max_per_subscriber=limits.subscriptions_per_subscriber, max_lease=float(limits.lease_max)
        ),
        name=own.name,
        domain=domain,
        memory=sections.memory,
        web=web_config(sections),
        access=_access(sections, known),
        zones=zones,
        bootstrapping=_bootstrapping(sections, zones),
        discovery=_discovery(sections, domain),
        traces=traces_config(sections.read("traces", TracesSection), folder),
        admin=_admin(sections),
    )


def _discovery(sections: Sections, domain: str | None) -> DiscoveryConfig:
    try:
        return discovery_config(sections.read("discovery", DiscoverySection), sections.folder, domain)
    except DiscoveryKeyError as error:
        raise SectionError(error.key, str(error)) from None


def _bootstrapping(sections: Sections, zones: tuple[str, ...]) -> BootstrappingConfig:
    try:
        return bootstrapping_config(sections.read("bootstrapping", BootstrappingSection), zones)
    except ValueError as error:
        if isinstance(error, SectionError):
            raise
        key, _, what = str(error).partition(": ")
        raise SectionError(f"bootstrapping.{key}", what) from None


def _admin(sections: Sections) -> AdminConfig | None:
    section = sections.read("admin", AdminSection)
    for place, peer in enumerate(section.peers):
        try:
            normalised(peer)
        except UrlError as error:
            raise SectionError(f"admin.peers[{place}]", f"{peer[:200]!r} {error}") from None
    try:
        return from_section(section, address, sections.secrets, sections.tls)
    except SectionError:
        raise
    except ValueError as error:
        raise SectionError("admin.listen", str(error)) from None


def _access(sections: Sections, known: Sequence[Descriptor]) -> AccessRules:
    try:
        return access_of(sections.read("access", AccessSection), namespaces_of(known))
    except AccessConfigError as error:
        raise SectionError(error.key, error.what) from None


def _domain(own: GatewaySection) -> str | None:
    if own.domain is None:
        return None
    try:
        return split_user(f"someone@{own.domain}")[1]
    except TopicError as error:
        raise SectionError("gateway.domain", f"{own.domain[:80]!r} is no domain: {error}") from None


def _zones(own: GatewaySection) -> tuple[str, ...]:
    zones = []
    for place, name in enumerate(own.zones):
        key = f"gateway.zones[{place}]"
        try:
            zone = zone_of(split_user(f"someone@{name}")[1]).domain
        except (NoZoneError, TopicError) as error:
            raise SectionError(key, str(error)) from None
        if zone != name.lower():
            raise SectionError(key, f"{name!r} is below the zone {zone!r}: name that")
        zones.append(zone)
    return tuple(zones)


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


def _named(source: str, key: str, what: str, overridden: Mapping[str, str]) -> str:
    variable = next((name for place, name in overridden.items() if key == place or key.startswith(f"{place}[")), None)
    where = f"{source}: {key}" if key else source
    return f"{where}: {what}" + (f" (set by {variable})" if variable is not None else "")

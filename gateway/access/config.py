"""The section [access] of a gateway's configuration."""

from collections.abc import Callable
from typing import Annotated

from msgspec import Meta, Struct

from gateway.access.rules import (
    AccessRules,
    Act,
    Effect,
    EntrySide,
    Rule,
    client_networks,
    topic_pattern,
    zone_pattern,
)
from identifiers.namespaces import STANDARD, Namespaces

MAX_RULES = 10_000
HASH_HEX = r"^[0-9a-fA-F]{40,64}$"
Name = Annotated[str, Meta(min_length=1, max_length=2048)]


class AccessRule(Struct, frozen=True, forbid_unknown_fields=True):
    """One rule; conditions that are left out hold always."""

    effect: Effect
    acts: tuple[Act, ...] = (Act.PUBLISH, Act.SUBSCRIBE)
    topics: tuple[Name, ...] = ()
    zones: tuple[Name, ...] = ()
    callbacks: tuple[Name, ...] = ()
    clients: tuple[Name, ...] = ()
    signers: tuple[Annotated[str, Meta(pattern=HASH_HEX)], ...] = ()
    origin: EntrySide | None = None
    token: bool = False
    reason: Annotated[str, Meta(max_length=200)] = ""


class AccessSection(Struct, frozen=True, forbid_unknown_fields=True):
    default: Effect = Effect.ALLOW
    rules: Annotated[tuple[AccessRule, ...], Meta(max_length=MAX_RULES)] = ()


class AccessConfigError(ValueError):
    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key
        self.what = what


def access_of(section: AccessSection, namespaces: Namespaces = STANDARD) -> AccessRules:
    """The rules as they are applied. Raises `AccessConfigError`."""
    rules = tuple(_rule(place, rule, namespaces) for place, rule in enumerate(section.rules))
    return AccessRules(rules, section.default, namespaces)


def _rule(place: int, rule: AccessRule, namespaces: Namespaces) -> Rule:
    def each(key: str, texts: tuple[str, ...], read: Callable[[str], str]) -> tuple[str, ...]:
        try:
            return tuple(map(read, texts))
        except ValueError as error:
            raise AccessConfigError(f"access.rules[{place}].{key}", str(error)) from None

    try:
        clients = client_networks(rule.clients)
    except ValueError as error:
        raise AccessConfigError(f"access.rules[{place}].clients", str(error)) from None
    if not rule.acts:
        raise AccessConfigError(f"access.rules[{place}].acts", "expected publish, subscribe or both")
    if rule.callbacks and Act.SUBSCRIBE not in rule.acts:
        raise AccessConfigError(f"access.rules[{place}].callbacks", "only who subscribes has a callback")
    if (rule.clients or rule.signers or rule.token or rule.origin) and Act.PUBLISH not in rule.acts:
        key = f"access.rules[{place}]"
        raise AccessConfigError(key, "clients, signers, token and origin say who publishes; subscribers are callbacks")
    return Rule(
        rule.effect,
        frozenset(rule.acts),
        each("topics", rule.topics, lambda text: topic_pattern(text, namespaces)),
        each("zones", rule.zones, zone_pattern),
        each("callbacks", rule.callbacks, _callback_pattern),
        clients,
        frozenset(signer.lower() for signer in rule.signers),
        rule.origin,
        rule.token,
        rule.reason,
    )


def _callback_pattern(text: str) -> str:
    if "://" not in text:
        raise ValueError(f"expected an address with its scheme, not {text[:80]!r}")
    scheme, rest = text.split("://", 1)
    return f"{scheme.lower()}://{rest if '/' in rest else f'{rest}/'}"

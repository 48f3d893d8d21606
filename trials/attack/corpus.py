"""All attacks, by family."""

from collections.abc import Sequence
from itertools import chain

from trials.attack import (
    on_addresses,
    on_clocks,
    on_deliveries,
    on_intake,
    on_members,
    on_people,
    on_subscriptions,
    on_wires,
)
from trials.attack.stranger import Attack

FAMILIES: dict[str, Sequence[Attack]] = {
    "addresses": on_addresses.ATTACKS,
    "intake": on_intake.ATTACKS,
    "subscriptions": on_subscriptions.ATTACKS,
    "deliveries": on_deliveries.ATTACKS,
    "clocks": on_clocks.ATTACKS,
    "people": on_people.ATTACKS,
    "wires": on_wires.ATTACKS,
    "members": on_members.ATTACKS,
}


def all_attacks() -> list[Attack]:
    return list(chain.from_iterable(FAMILIES.values()))


def attack_named(name: str) -> Attack:
    return next(attack for attack in all_attacks() if attack.name == name)

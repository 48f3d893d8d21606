"""Steps of the hub's tables that are in files out there: they are never edited or numbered anew, only added to."""

import hashlib

from push_hub.hub import TABLES

RELEASED = {
    ("push_hub", 1): "f9e37fed027749bb",
    ("push_hub", 2): "da9681c4a134ad39",
    ("push_hub.canary", 1): "157b624d6acac03b",
    ("push_hub.health", 1): "4b9f52b2580dbf6a",
    ("push_hub.intake", 1): "4b911e6b85bcda39",
    ("push_hub.intake", 2): "c329020b055c8cab",
    ("push_hub.subscriptions", 1): "4d5eea6c6f76ecbe",
    ("push_hub.subscriptions", 2): "92eead07d1f1eed8",
    ("push_hub_delivery", 1): "1281f86e7a7f6673",
    ("push_hub_delivery", 2): "3e9071dcaa1fd842",
}


def test_what_was_released_is_as_it_was() -> None:
    digests = {
        (step.owner, step.version): hashlib.sha256("\n".join(step.statements).encode()).hexdigest()[:16]
        for step in TABLES
    }
    assert len(digests) == len(TABLES), "two steps have the same number"
    changed = {key for key, digest in RELEASED.items() if digests.get(key) != digest}
    assert not changed, f"add another step instead of changing these: {changed}"

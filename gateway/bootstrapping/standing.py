"""Who answers for a zone in the network, asked of the network itself: for the hub's policy and for people."""

from dataclasses import dataclass

from gateway.bootstrapping.messages import SignallingMessageError, ZoneAnnouncement, announcement_item, decode
from identifiers import HashName, ItemId, Naming, Scheme, Topic, TopicError, Zone
from psirp_stack.node.api import Client

READ_ANNOUNCEMENT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ZoneStanding:
    """How a zone stands. `mismatch`: it is managed, or the topic is published, but under ids that we never use."""

    zone: str
    managed: bool
    manager: str
    """What its manager calls itself; empty when that could not be read."""
    mismatch: str | None

    @property
    def text(self) -> str:
        if self.mismatch is not None:
            return self.mismatch
        if not self.managed:
            return f"nobody in the network manages the zone {self.zone}, so nobody would bring this topic"
        return f"the zone {self.zone} is managed by {self.manager or 'somebody who does not say who he is'}"


async def standing_of(client: Client, naming: Naming, zone: Zone, topic: Topic) -> ZoneStanding:
    """Raises what the client raises."""
    item = announcement_item(naming, zone)
    if (await client.explain(item.sid, item.rid)).publishers:
        announced = await read_announcement(client, item)
        if announced is None:
            return ZoneStanding(zone.domain, True, "", None)
        wrong = naming.mismatch(announced.naming)
        text = None if wrong is None else f"{announced.manager} manages {zone.domain}, but {wrong}"
        return ZoneStanding(zone.domain, True, announced.manager, text)
    return ZoneStanding(zone.domain, False, "", await under_another_naming(client, naming, zone, topic))


async def under_another_naming(client: Client, naming: Naming, zone: Zone, topic: Topic) -> str | None:
    """Whether somebody manages the zone, or publishes the topic, under ids that we never use."""
    for hash_name in HashName:
        other = Naming(naming.scheme, hash_name)
        if other == naming:
            continue
        item = announcement_item(other, zone)
        if (await client.explain(item.sid, item.rid)).publishers:
            announced = await read_announcement(client, item)
            if announced is None or announced.naming == other.announcement:
                return f"the zone {zone.domain} is managed, but {naming.mismatch(other.announcement)}"
            return f"{announced.manager} manages {zone.domain}, but {naming.mismatch(announced.naming)}"
    for scheme in Scheme:
        for hash_name in HashName:
            other = Naming(scheme, hash_name)
            try:
                item = other.of_topic(topic)
            except TopicError:
                continue
            if other != naming and (await client.explain(item.sid, item.rid)).publishers:
                return f"the topic is published, but {naming.mismatch(other.announcement)}"
    return None


async def read_announcement(client: Client, item: ItemId) -> ZoneAnnouncement | None:
    publication = await client.read_current(item.sid, item.rid, READ_ANNOUNCEMENT_SECONDS)
    if publication is None:
        return None
    try:
        message = decode(publication.content)
    except SignallingMessageError:
        return None
    return message if isinstance(message, ZoneAnnouncement) else None

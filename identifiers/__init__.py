"""Names and ids: topic URLs to PSIRP identifiers and back. Pure functions, apart from the registry.

topic = Topic.parse("http://rss.dit.upm.es/datagisai_feedstest")
item = Naming().of_topic(topic)          # ItemId(sid, rid)
"""

from identifiers.content import page_id, version_id
from identifiers.identifier import ROOT_SCOPE, Identifier, IdentifierSyntaxError, ItemId
from identifiers.naming import DEFAULT_NAMING, HashName, Naming, NoZoneError, Scheme, Zone, split_user, zone_of
from identifiers.topic import Topic, TopicError, Transport

__all__ = [
    "DEFAULT_NAMING",
    "ROOT_SCOPE",
    "HashName",
    "Identifier",
    "IdentifierSyntaxError",
    "ItemId",
    "Naming",
    "NoZoneError",
    "Scheme",
    "Topic",
    "TopicError",
    "Transport",
    "Zone",
    "page_id",
    "split_user",
    "version_id",
    "zone_of",
]

"""The section [bootstrapping] of a gateway's configuration file."""

from typing import Annotated

from msgspec import Meta, Struct, structs

from gateway.bootstrapping.config import BootstrappingConfig, Unmanaged
from gateway.bootstrapping.messages import MAX_TOPICS_IN_MESSAGE

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0.0)]
Key = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
_DEFAULT = BootstrappingConfig()


class BootstrappingSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Topics of other domains, and what others may want of the zones in `gateway.zones`. Times are in seconds."""

    unmanaged: Unmanaged = _DEFAULT.unmanaged
    answer_timeout: Seconds = _DEFAULT.answer_timeout
    lease: Annotated[float, Meta(ge=1.0)] = _DEFAULT.lease
    unconfirmed: Seconds = _DEFAULT.unconfirmed
    max_zones: Count = _DEFAULT.max_zones
    manager_keys: tuple[Key, ...] = _DEFAULT.manager_keys
    max_lease: Annotated[float, Meta(ge=1.0)] = _DEFAULT.max_lease
    max_requesters: Count = _DEFAULT.max_requesters
    max_topics_per_requester: Annotated[int, Meta(ge=1, le=MAX_TOPICS_IN_MESSAGE)] = _DEFAULT.max_topics_per_requester
    max_topics: Count = _DEFAULT.max_topics
    requester_keys: tuple[Key, ...] = _DEFAULT.requester_keys
    upstream_lease: Count = _DEFAULT.upstream_lease
    upstream_confirm: Seconds = _DEFAULT.upstream_confirm
    upstream_at_once: Count = _DEFAULT.upstream_at_once
    secret_over_http: bool = _DEFAULT.secret_over_http
    poll_hubless: bool = _DEFAULT.poll
    poll_every: Seconds = _DEFAULT.poll_every


def bootstrapping_config(section: BootstrappingSection, zones: tuple[str, ...]) -> BootstrappingConfig:
    """`ValueError` that begins with the key when two keys do not go together."""
    if section.upstream_confirm >= section.answer_timeout:
        raise ValueError("upstream_confirm: expected less than `answer_timeout`, or nobody is answered in time")
    values = structs.asdict(section)
    values["poll"] = values.pop("poll_hubless")
    return BootstrappingConfig(zones=zones, **values)

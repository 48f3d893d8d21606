"""Where other parts plug in: routes, signatures, wall-clock time."""

from collections.abc import Callable

from identifiers.identifier import ItemId
from psirp_stack.transport.messages import Announcement
from psirp_stack.wire.codec import AuthenticationHeader, Frame, MetadataHeader

RouteTo = Callable[[str], tuple[bytes, int] | None]
"""A filter to the node with this name and the longest frame that fits on the way; None when there is no way."""

WallClock = Callable[[float], int]
"""Milliseconds since 1970 at a moment of the caller's own clock: publication times and signatures need them."""

PublicationSigner = Callable[[ItemId, MetadataHeader, Announcement, int], AuthenticationHeader]
"""Signs a version, at a time in milliseconds. What differs between two frames of one version is left out of header and
announcement: `collected_fid`, `max_seqnum`, `segment_size` and `settled_ms` are zero, and attributes are in place."""

PublicationVerifier = Callable[[ItemId, MetadataHeader, Announcement, AuthenticationHeader | None, int], str | None]
"""Why an announcement is refused; None when it counts. Asked before anything is believed of it, and again when it
is repeated. Header and announcement are those of the frame: attributes that come in segments are there as a digest."""

PacketSigner = Callable[[Frame, int], Frame]
"""A data frame with an authentication header."""

PacketVerifier = Callable[[ItemId, Frame, int], str | None]
"""Why a frame is refused that is signed as a packet: a segment where the policy demands it, or an answer."""

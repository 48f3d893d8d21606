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
"""Signs a version. Header and announcement are as the verifier will see them, without what differs between two
frames of one version: `collected_fid`, `max_seqnum`, `oldest` and `segment_size` are zero. The last is the time."""

PublicationVerifier = Callable[[ItemId, MetadataHeader, Announcement, AuthenticationHeader | None, int], str | None]
"""Why a version is refused; None when it counts. Asked when the version is
complete and its content was checked against the announcement; once, unless it was refused."""

PacketSigner = Callable[[Frame, int], Frame]
"""A data frame with an authentication header."""

PacketVerifier = Callable[[ItemId, Frame, int], str | None]
"""Why a data frame is refused, in a scope whose packets are all signed."""

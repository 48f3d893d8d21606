"""What was handed up lately: the same publication from two publishers, or from two lives of one, is handed up once.

A publication is its content and its attributes. Equal content with other attributes is one version on the wire, but its
application has said that it means another thing: it is handed up, and the application judges.
"""

import hashlib
from collections import OrderedDict

Origin = tuple[str, int]
"""Publisher and epoch."""


class RecentVersions:
    """The last version ids of one item, and whose order each counts for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._origins: OrderedDict[bytes, tuple[bytes, Origin]] = OrderedDict()

    def __contains__(self, version_id: bytes) -> bool:
        return version_id in self._origins

    def is_repeated(self, version_id: bytes, attributes: bytes, origin: Origin) -> bool:
        """Whether somebody else has sent this publication; once for each time that they did."""
        digest = hashlib.sha256(attributes).digest()
        before = self._origins.pop(version_id, None)
        self._origins[version_id] = (digest, origin)
        if len(self._origins) > self._most:
            self._origins.popitem(last=False)
        return before is not None and before[0] == digest and before[1] != origin

    def forget(self) -> None:
        """From here on nothing is taken for something that was sent before."""
        self._origins.clear()

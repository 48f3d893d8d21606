"""What was handed up lately: the same content from two publishers, or from two lives of one, is handed up once."""

from collections import OrderedDict

Origin = tuple[str, int]
"""Publisher and epoch."""


class RecentVersions:
    """The last version ids of one item, and whose order each counts for."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._origins: OrderedDict[bytes, Origin] = OrderedDict()

    def __contains__(self, version_id: bytes) -> bool:
        return version_id in self._origins

    def is_repeated(self, version_id: bytes, origin: Origin) -> bool:
        """Whether somebody else has sent this content; once for each time that they did."""
        before = self._origins.pop(version_id, None)
        self._origins[version_id] = origin
        if len(self._origins) > self._most:
            self._origins.popitem(last=False)
        return before is not None and before != origin

    def forget(self) -> None:
        """From here on nothing is taken for something that was sent before."""
        self._origins.clear()

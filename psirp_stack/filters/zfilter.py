"""One filter: the tags of a delivery tree's links, ORed together, and the table they came from."""

from collections.abc import Iterable
from dataclasses import dataclass

from psirp_stack.forwarding_model import FID_BYTES, FILTER_BITS, FILTER_BYTES, MAX_FILTER_FILL, TABLES, Tags


class FilterOverfullError(ValueError):
    """The filter would have more than half of its bits set, so every forwarder would drop it."""

    def __init__(self, bits_set: int) -> None:
        super().__init__(
            f"the filter would have {bits_set} of {FILTER_BITS} bits set; at most {MAX_FILTER_FILL} may be"
        )
        self.bits_set = bits_set


@dataclass(frozen=True, slots=True)
class ZFilter:
    """A filter as the packet carries it."""

    bits: int
    table: int

    def __post_init__(self) -> None:
        if not 0 <= self.bits < 1 << FILTER_BITS:
            raise ValueError(f"a filter has {FILTER_BITS} bits")
        if not 0 <= self.table < TABLES:
            raise ValueError(f"the table index is {self.table}; expected 0 to {TABLES - 1}")

    @classmethod
    def of(cls, tags: Iterable[Tags], table: int) -> "ZFilter":
        """The filter that names all these links, whatever its fill."""
        bits = 0
        for tag in tags:
            bits |= tag[table]
        return cls(bits, table)

    @classmethod
    def from_fid(cls, fid: bytes) -> "ZFilter":
        if len(fid) != FID_BYTES:
            raise ValueError(f"a forwarding identifier has {FID_BYTES} bytes, not {len(fid)}")
        return cls(int.from_bytes(fid[:FILTER_BYTES], "big"), fid[FILTER_BYTES])

    def to_fid(self) -> bytes:
        return self.bits.to_bytes(FILTER_BYTES, "big") + bytes((self.table,))

    @property
    def bits_set(self) -> int:
        return self.bits.bit_count()

    @property
    def fill(self) -> float:
        return self.bits_set / FILTER_BITS

    @property
    def overfull(self) -> bool:
        return self.bits_set > MAX_FILTER_FILL

    def names(self, tags: Tags) -> bool:
        """Whether a forwarder would take this filter for one that names the link."""
        tag = tags[self.table]
        return self.bits & tag == tag

    def checked(self) -> "ZFilter":
        """This filter, or an error when forwarders would refuse it."""
        if self.overfull:
            raise FilterOverfullError(self.bits_set)
        return self

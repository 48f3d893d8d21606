"""Choosing among candidate filters: one candidate per table, all for the same tree."""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from psirp_stack.filters.reach import Reach
from psirp_stack.filters.zfilter import FilterOverfullError, ZFilter
from psirp_stack.forwarding_model import TABLES, Tags
from psirp_stack.graph import DeliveryTree, Link


def candidates(named: Sequence[Tags]) -> list[ZFilter]:
    """One filter per table, overfull ones included."""
    return [ZFilter.of(named, table) for table in range(TABLES)]


def usable(named: Sequence[Tags]) -> list[ZFilter]:
    """The candidates that forwarders accept; an error when there is none."""
    found = candidates(named)
    kept = [candidate for candidate in found if not candidate.overfull]
    if not kept:
        raise FilterOverfullError(min(candidate.bits_set for candidate in found))
    return kept


def predicted_rate(candidate: ZFilter, named: Sequence[Tags]) -> float:
    """The chance fill^k that a link outside the tree matches; k is the mean over the tags, which may differ."""
    k = statistics.fmean(tags[candidate.table].bit_count() for tags in named) if named else 1.0
    return float(candidate.fill**k)


def choose_fpa(named: Sequence[Tags]) -> ZFilter:
    """The lowest predicted false-positive rate: needs nothing but the filters."""
    return min(usable(named), key=lambda candidate: predicted_rate(candidate, named))


def choose_fpr(
    reach: Reach, tree: DeliveryTree, named: Sequence[Tags], forbidden: Collection[Link] | None = None
) -> ZFilter:
    """The fewest false positives seen on the links that must not match; the emptier filter when equal."""

    def seen(candidate: ZFilter) -> tuple[int, int]:
        return reach.false_positives(candidate, tree, forbidden).hits, candidate.bits_set

    return min(usable(named), key=seen)


@dataclass(frozen=True, slots=True)
class Followed:
    """A filter, and where it leads."""

    zfilter: ZFilter
    links_used: int
    returns: bool
    """Whether a false positive leads back into the tree."""


def choose_followed(reach: Reach, tree: DeliveryTree, named: Sequence[Tags]) -> Followed:
    """The fewest links used when every false positive is followed to its end, rather none that leads back."""
    wanted = set(tree.links)
    inside = {tree.source, *tree.parents}
    best: Followed | None = None
    for candidate in usable(named):
        # One that leads back is no better than any that does not, however many links that one uses.
        limit = None if best is None or best.returns else best.links_used - 1
        used = reach.links_used(candidate, tree.source, limit)
        returns = any(reach.graph.links[link][1] in inside for link in used - wanted)
        if best is None or (returns, len(used)) < (best.returns, best.links_used):
            best = Followed(candidate, len(used), returns)
            if len(used) == len(wanted):
                break
    if best is None:
        raise AssertionError("usable() gives at least one candidate")
    return best

"""Why a publication reached whom: what those who select from an item said of its newest publication."""

from collections import Counter
from collections.abc import Sequence

from exchange.ports import Wanted
from exchange.selection.attributes import attributes_of
from gateway.control import Control
from identifiers import ItemId

REASONS_SHOWN = 8


async def explained_selection(control: Control, item: ItemId) -> Sequence[str]:
    """Sentences; none when nobody selects."""
    everybody, _ = await control.exchange.router.matching(item)
    selecting = [one for interests in everybody.values() for one in interests if one.selector.predicates]
    newest = await control.exchange.log.newest(Wanted(item))
    if not selecting or newest is None:
        return [f"{len(selecting)} subscriptions select from it"] if selecting else []
    attributes = attributes_of(newest.draft)
    failed: Counter[str] = Counter()
    taken = 0
    for one in selecting:
        predicate = one.entry_selector.failed(attributes)
        if predicate is None:
            taken += 1
        else:
            found = ", ".join(attributes.get(predicate.name, ())) or "nothing"
            failed[f"{predicate} (it is {found[:100]})"] += 1
    said = [f"{len(selecting)} subscriptions select from it, and the newest publication is for {taken} of them"]
    said += [f"not for {count}, because of {why}" for why, count in failed.most_common(REASONS_SHOWN)]
    return said

"""Why an item arrives or does not, in words: the answer to the question that users of such networks ask most."""

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import Explanation

UNSERVED_WORDS = {
    Code.UNREACHABLE: "no path leads from any publisher to it",
    Code.FILTER_TOO_FULL: "the delivery tree does not fit into the filters that are allowed",
}


def diagnose(known: Explanation) -> tuple[Code, str]:
    """The first thing that stands between publisher and subscriber, looking in the order in which they must agree."""
    if known.unserved:
        return _unserved(known)
    if known.publishers and known.subscribers:
        return Code.SUCCESS, f"matched: {_nodes(known.publishers)} for {_nodes(known.subscribers)}"
    if known.refusals and not (known.publishers and known.subscribers):
        return Code.NOT_ALLOWED, f"refused: {known.refusals[0]}"[:300]
    if not known.publishers and not known.subscribers:
        what = "the scope is not known" if not known.scope_exists else "nobody publishes it and nobody subscribes"
        return Code.DOES_NOT_EXIST, f"no publisher and no subscriber: {what}"
    if not known.publishers:
        return Code.ITEM_DOES_NOT_EXIST, f"no publisher; {_nodes(known.subscribers)} wait for one"
    return Code.DOES_NOT_EXIST, f"no subscriber; {_nodes(known.publishers)} could publish"


def _unserved(known: Explanation) -> tuple[Code, str]:
    name, number = known.unserved[0]
    code = Code(number)
    words = UNSERVED_WORDS.get(code, code.name.lower().replace("_", " "))
    others = f" (and {len(known.unserved) - 1} more)" if len(known.unserved) > 1 else ""
    return code, f"{name!r} is not served{others}: {words}"


def _nodes(names: tuple[str, ...]) -> str:
    shown = ", ".join(map(repr, names[:5]))
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown

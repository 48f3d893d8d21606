"""Observers are functions that are told events; absent ones are None."""

from collections.abc import Callable


def both(
    first: Callable[[object], None] | None, second: Callable[[object], None] | None
) -> Callable[[object], None] | None:
    """Two observers as one; nobody is told more than there is to tell."""
    if first is None or second is None:
        return first or second

    def tell(event: object) -> None:
        first(event)
        second(event)

    return tell

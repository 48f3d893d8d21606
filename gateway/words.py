"""Words for people."""


def counted(number: int, what: str) -> str:
    """«1 node», «2 nodes»."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"

"""The one way a command says that it was asked for something it cannot do."""


class CommandError(Exception):
    """Shown as one line on stderr with exit code 2, so the text must say what to change."""

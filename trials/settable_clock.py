"""A real psph process whose system clock somebody else sets: python -m trials.settable_clock FILE PSPH-ARGUMENTS...

The kernel has one wall clock for all (a time namespace has monotonic clocks of its own, and no wall clock), so the
process is shown another one: `time.time` says there the system's time and what the file says, in seconds.
"""

import sys
import time
from importlib import import_module
from pathlib import Path


class SettableClock:
    """`command` runs psph with it; `set_by` sets it, also while processes run."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "clock"
        self.set_by(0.0)

    def set_by(self, seconds: float) -> None:
        """The system's clock is off by this from now on."""
        fresh = self.file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self.file)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", __name__, str(self.file), *arguments]


def main(file: Path, arguments: list[str]) -> int:
    system = time.time
    time.time = lambda: system() + float(file.read_text())
    # Only now: others take `time.time` when they are imported.
    status: int = import_module("gateway.cli.main").main(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

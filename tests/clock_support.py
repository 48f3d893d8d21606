"""Real processes whose system clock is ours: what `time.time` says there is the system's time and what a file says."""

import sys
from pathlib import Path

PROGRAM = """
import sys, time
system, file = time.time, sys.argv.pop(1)
def shifted():
    with open(file) as said:
        return system() + float(said.read())
time.time = shifted
from gateway.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class SettableClock:
    """`command` runs psph with it; `set_by` sets it, also while processes run."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set_by(0.0)

    def set_by(self, seconds: float) -> None:
        """The system's clock is off by this from now on."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._file)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-c", PROGRAM, str(self._file), *arguments]

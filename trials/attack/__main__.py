"""One attack, in the namespace of the stranger: python -m trials.attack NAME SECONDS [FOLDER]

Prints a JSON object: what was done and how it was answered, and what happened that must never happen.
"""

import asyncio
import json
import sys
from pathlib import Path

import uvloop

from trials.attack.corpus import attack_named
from trials.attack.stranger import Stranger

EXTRA = 20.0
"""Seconds that an attack may take to end."""


async def main(name: str, seconds: float, folder: Path | None) -> None:
    attack = attack_named(name)
    async with Stranger(seconds, folder) as stranger:
        try:
            async with asyncio.timeout(seconds + EXTRA):
                await attack.run(stranger)
        except TimeoutError:
            stranger.counts["broken off"] += 1
        found = {"counts": dict(stranger.counts), "breaches": stranger.breaches}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3]) if sys.argv[3:] else None))

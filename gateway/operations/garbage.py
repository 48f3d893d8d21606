"""Cycles are looked for seldom, and never in what a process has loaded at its start.

With Python's own numbers each new object in 700 starts a look, and now and then one goes through all there is: 25 to
50 ms, in which every publication waits. What lives for one publication is freed by counting; cycles are few.
"""

import gc

OBJECTS = 20_000
"""New ones until the youngest are looked at."""
YOUNG_ROUNDS, MIDDLE_ROUNDS = 20, 50


def spare_what_is_loaded() -> None:
    """Call it once, when everything is up."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, YOUNG_ROUNDS, MIDDLE_ROUNDS)

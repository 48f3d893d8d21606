"""kill -9 a real hub again and again, and check that nothing it acknowledged is lost: `psph crash hub`.

snapshot   what the store of a dead hub says, read from a copy
ledger     what the hub acknowledged, what arrived, and what must therefore be true (no I/O)
world      the publisher and the callbacks
driver     the rounds: start, load, kill, check
"""

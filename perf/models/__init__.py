"""What latency and success should be: formulas, chains of them, and a simulator. See `docs/models.md`.

Pure: nothing here opens a socket, reads a clock or needs Spark. Times are seconds, rates are messages a second.
"""

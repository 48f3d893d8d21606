"""Versions of items, whole and in order: segments, repair, flow control, retained versions. Sans-I/O."""

"""Sealed links, sans-I/O: two neighbours prove the domain's secret to each other, then every frame is encrypted.

`handshake` makes sessions, `session` seals and opens frames with one, `channel` is what a link uses. What they protect
from, and what not, is in docs/design/sealed-links.md.
"""

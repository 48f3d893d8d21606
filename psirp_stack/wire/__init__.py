"""PSIRP frames as the running stack sees them: protocol numbers and a fast codec on raw bytes.

The same headers are declared a second time, for people, as scapy layers in `psirp_stack.tools.layers`; tests show
that both descriptions give the same bytes. Nothing in this package imports scapy.
"""

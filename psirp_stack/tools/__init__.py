"""Packet tools for people: scapy layers, capture, dissection, the reference forwarder, the fuzzer.

The only place in `psirp_stack` that imports scapy. The running stack never imports anything from here.
"""

"""Protocols around the exchange: a folder and a `ProtocolDescriptor` each, and one line in `gateway.protocols.listed`.

None of them imports another, and nothing outside this folder has to change for one more. `gateway.protocols.descriptor`
says what a protocol tells of itself; CONTRIBUTING.md says how to write one.
"""

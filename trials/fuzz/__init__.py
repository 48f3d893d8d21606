"""Mutated frames for the parsers and nodes of PSIRP, hostile requests for a hub: `psph fuzz`."""

"""A PSIRP network: frames, filters, forwarders and links. Knows nothing of HTTP or feeds."""

"""Names and ids: topic URLs to PSIRP identifiers and back. Pure functions, apart from the registry."""

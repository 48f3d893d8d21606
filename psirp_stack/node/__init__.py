"""A PSIRP node: the parts put together, the applications attached to it, and the API that they use."""

"""A WebSub / PubSubHubbub hub. Knows nothing of PSIRP."""

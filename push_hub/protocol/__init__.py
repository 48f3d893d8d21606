"""The hub's side of WebSub and PubSubHubbub 0.4 and 0.3, without I/O: requests, intent checks, leases."""

"""The durable log of publications in the middle of everything, and its readers: sessions with a cursor of their own.

    exchange = Exchange(SqliteLog(database), SqliteSessions(database), clock)
    exchange.add(reader)                                    # a protocol: see `exchange.ports.SessionReader`
    await exchange.start()
    await exchange.publish(draft, via="notes")              # durable when this returns
    await exchange.subscribe(key, interest)                 # from now on, or from `Start`

No module here names a protocol, opens a port or knows what a body means.
"""

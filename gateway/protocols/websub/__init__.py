"""WebSub and PubSubHubbub: the hub, its subscribers and publishers, and what it forgets when nobody wants it."""

"""A small feed reader with stock software, Flask-WebSub, that uses whichever hub a feed names.

    pip install Flask-WebSub
    python examples/flask_reader.py http://127.0.0.1:8080/feeds/http://127.0.0.1:8000/feed

It looks for the hub and the topic in the feed, subscribes, and prints the titles of what is pushed to it. With
`--count 1` it ends after one push. Nothing in it knows of psph.
"""

import argparse
import threading
from pathlib import Path
from tempfile import mkdtemp

import feedparser
from flask import Flask
from flask_websub.subscriber import (
    SQLite3SubscriberStorage,
    SQLite3TempSubscriberStorage,
    Subscriber,
    discover,
)
from werkzeug.serving import make_server


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("feed")
    arguments.add_argument("--count", type=int, default=0, help="end after so many pushes; 0: never")
    given = arguments.parse_args()

    folder = Path(mkdtemp())
    storage = (SQLite3SubscriberStorage(str(folder / "s")), SQLite3TempSubscriberStorage(str(folder / "t")))
    subscriber = Subscriber(*storage)
    app = Flask(__name__)
    app.register_blueprint(subscriber.build_blueprint(url_prefix="/callbacks"))
    enough = threading.Event()
    left = given.count

    @subscriber.add_listener
    def pushed(topic: str, callback: str, body: bytes) -> None:
        nonlocal left
        print("pushed:", ", ".join(entry.title for entry in feedparser.parse(body).entries), flush=True)
        left -= 1
        if left == 0:
            enough.set()

    @subscriber.add_error_handler
    def failed(topic: str, callback: str, reason: str) -> None:
        print("refused:", reason, flush=True)
        enough.set()

    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    app.config["SERVER_NAME"] = f"127.0.0.1:{server.server_port}"
    found = discover(given.feed)
    print("subscribing to", found["topic_url"], "at", found["hub_url"], flush=True)
    with app.app_context():
        subscriber.subscribe(**found)
    enough.wait()
    server.shutdown()


if __name__ == "__main__":
    main()

"""What the hub says about itself: a page for people, and short documents for programs that look around."""

from html import escape

from push_hub.model import SignatureMethod
from push_hub.protocol.numbers import MAX_URL_LENGTH, SECRET_LIMIT

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>WebSub hub</title>
<style>body{{font:1rem/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}}
pre{{background:#8882;padding:.7rem;overflow:auto}}</style>
</head>
<body>
<h1>WebSub hub</h1>
<p>This address is a hub for <a href="https://www.w3.org/TR/websub/">WebSub</a> and PubSubHubbub 0.4 and 0.3.
Programs use it with <code>POST</code>; this page is for you.</p>
<h2>You publish something</h2>
<p>Name this hub and your topic in the headers of your feed or page:</p>
<pre>Link: &lt;{hub}&gt;; rel="hub", &lt;https://example.com/feed&gt;; rel="self"</pre>
<p>and tell the hub when it changes (up to {max_topics} topics at once):</p>
<pre>curl {hub} -d hub.mode=publish -d hub.url=https://example.com/feed</pre>
<p>It is fetched then, and may have up to {max_document} bytes. Does nothing arrive? What is wrong with it:</p>
<pre>curl {base}/diagnostics/topic?topic=https://example.com/feed</pre>
<h2>You want to receive it</h2>
<pre>curl {hub} -d hub.mode=subscribe -d hub.topic=https://example.com/feed \\
     -d hub.callback=https://you.example/unguessable -d hub.secret=a-random-text</pre>
<p>The hub asks your callback to confirm, then sends every change to it, signed with your secret. Without a public
address, read the stream instead:</p>
<pre>curl -N {base}/stream?topic=https://example.com/feed</pre>
<h2>Nothing arrives?</h2>
<p>What is wrong with a topic is above. A subscriber who knows the secret is told what the hub did and why it failed:
see <code>{base}/diagnostics/subscription</code>. The hub's own state is at
<a href="{base}/health">{base}/health</a>.</p>
</body>
</html>
"""


def hub_page(hub_url: str, *, max_topics: int, max_document: int) -> str:
    base = escape(hub_url.rstrip("/"))
    return _PAGE.format(hub=escape(hub_url), base=base, max_topics=max_topics, max_document=f"{max_document:,}")


def robots() -> str:
    return "User-agent: *\nAllow: /$\nDisallow: /\n"


def well_known(hub_url: str, *, max_body: int, max_topics: int, max_document: int) -> dict[str, object]:
    """Our own document at `/.well-known/websub`: where everything is, and what a client must keep to."""
    base = hub_url.rstrip("/")
    return {
        "hub": hub_url,
        "specifications": ["https://www.w3.org/TR/websub/", "PubSubHubbub 0.4", "PubSubHubbub 0.3"],
        "stream": f"{base}/stream?topic={{topic}}",
        "health": f"{base}/health",
        "diagnostics": f"{base}/diagnostics/subscription?topic={{topic}}&callback={{callback}}",
        "topic": f"{base}/diagnostics/topic?topic={{topic}}",
        "signature_methods": [str(method) for method in SignatureMethod],
        "limits": {
            "body_bytes": max_body,
            "document_bytes": max_document,
            "topics_per_ping": max_topics,
            "secret_bytes": SECRET_LIMIT - 1,
            "url_characters": MAX_URL_LENGTH,
        },
    }


def host_meta(hub_url: str) -> str:
    """RFC 6415; how PubSubHubbub 0.4 clients may look for a host's hub."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n<XRD xmlns="http://docs.oasis-open.org/ns/xri/xrd-1.0">\n'
        f'  <Link rel="hub" href="{escape(hub_url)}"/>\n</XRD>\n'
    )


def host_meta_json(hub_url: str) -> dict[str, object]:
    return {"links": [{"rel": "hub", "href": hub_url}]}

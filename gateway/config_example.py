"""A complete configuration with every key at its default, for `psph config example`; a test checks that it is."""

EXAMPLE = """\
# A gateway: a WebSub hub joined to a PSIRP network.      psph gateway -c gateway.toml
#
# Every key but those of [node] may be left out; what is here is the default unless it says otherwise.
# An environment variable replaces a key: PSPH_HUB__LISTEN=0.0.0.0:80, PSPH_NODE__DOMAIN__SEED='"other"'.
# Paths are relative to this file. Files with secrets must have mode 0600.

[gateway]
name = "gateway"                    # what its node calls it
# domain = "example.com"            # the domain of its people: user@example.com
zones = []                          # DNS zones that it answers for, for instance ["example.com"]

[store]
path = "var/gateway"                # everything that must survive a restart

[hub]                               # the HTTP side
listen = "127.0.0.1:8080"           # port 0: a free one
# public_url = "https://hub.example.com/"       # what subscribers are told; default: where it listens
allow_private = false               # callbacks and topics on loopback and private addresses (to try things out)
topics = []                         # when given, serve only topics below these addresses
only_own_self = false               # deny a topic whose document names another address as its own
poll = false                        # look by itself at topics whose publishers do not ping
poll_min = 300.0                    # seconds
poll_max = 86400.0
trusted_proxies = []                # take a client's address from these proxies' X-Forwarded-For
# publisher_tokens_file = "publishers.tokens"   # one a line: who has one may bring content along with a ping
# operator_token_file = "operator.token"        # opens /diagnostics
stop_grace = 5.0                    # seconds that requests under way get at SIGTERM

[hub.canary]                        # the hub sends itself a publication and looks whether it arrives
enabled = true
interval = 60.0
deadline = 30.0

[naming]                            # both sides of a crossing must agree
scheme = "fqdn-path"                # or "zone"
hash = "sha1"                       # or "sha256"

# Either attach to a node that runs already:
# [network]
# attach = "/run/psph/node.sock"
# or run one here. These are the keys of `psph node`, without `socket`:

[node]
name = "gate-a"                     # unique in the network; no default
roles = []                          # "rendezvous", "topology": one node of a network does each
# data = "var/node"                 # default: below the store's path

[node.domain]
seed = "psph"                       # the same at all nodes: link tags follow from it
# secret_file = "domain.secret"     # the same at all nodes: who does not have it is not let in
# graph_file = "graph.tsv"          # an edge list: choose tags over this graph instead of by chance

[[node.links]]                      # not a default: one section for each link
udp = "127.0.0.1:4001"              # listen here
peer = "127.0.0.1:4002"             # and talk to nobody else
mtu = 1472

# [[node.links]]
# ethernet = "veth0"

[node.keys]                         # made by `psph keys`
# signing = "gateway.key"
# trusted = "trusted/"
require_signatures = false

[node.times]
hello = 1.0                         # a neighbour that says nothing for a few of these is gone
lease = 30.0

[node.retention]                    # how much of each item's past is kept for gateways that were away
count = 1024
bytes = 33554432
age = 3600.0

[limits]
subscriptions_per_subscriber = 10000
lease_min = 300                     # seconds
lease_default = 864000
lease_max = 2592000
connections = 20000
request_bytes = 65536
document_bytes = 8388608
requests_per_client = 200.0         # a second
requests_per_client_burst = 2000.0
requests_per_topic = 20.0
requests_per_topic_burst = 200.0
pending_checks = 100000
waiting_topics = 100000
fetches = 32
deliveries = 128                    # under way at the same time
deliveries_per_host = 16
delivery_timeout = 30.0
streams = 2000
kept_publications = 100000
kept_bytes = 1073741824
kept_age = 604800.0

[web]                               # for people and scripts: chat page, and topics by GET and POST (docs/rest.md)
listen = ""                         # for instance "127.0.0.1:8081"; empty: there is no such port
# public_url = "https://chat.example.com/"      # where people find it; default: where it listens
names = []                          # host names that it answers to beside addresses and that of public_url
trusted_proxies = []                # take a client's address from these proxies' X-Forwarded-For
anyone_may_publish = false          # whether a POST needs no token
# publish_tokens_file = "rest.tokens"           # one a line: who has one may publish
publish_below = []                  # when given, only topics that begin like one of these
cors_origins = []                   # sites whose scripts may use it, "*" for all
connections = 10000
requests_per_client = 50.0          # a second
requests_per_client_burst = 500.0
readers = 2000                      # open streams
readers_per_client = 50
waiting_bytes = 16777216            # for one slow reader, before it is cut off
published_bytes = 4194304           # of one POST

[chat]                              # a page for user@domain (docs/chat.md): needs gateway.domain and web.listen
enabled = true
people = 10000
partners = 50                       # of one person
kept_messages = 1000                # of each conversation
waiting_messages = 200              # of one person, while the network does not take them
messages_per_second = 2.0           # of one person
messages_burst = 20.0
idle_days = 90.0                    # then a name is free again
unused_days = 1.0                   # the same for one that never talked to anybody
pages = 2000                        # open at the same time
pages_per_person = 8
pages_per_client = 200              # of one address
"""

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
protocols = []                      # protocols from outside, as "package.module:DESCRIPTOR"; installed ones are found
memory_mb = 192                     # what caches, queues and publications in pieces may take, beside the program's 100

[store]
path = "var/gateway"                # everything that must survive a restart

[hub]                               # the HTTP side
listen = "127.0.0.1:8080"           # port 0: a free one
# public_url = "https://hub.example.com/"       # what subscribers are told; default: where it listens
allow_private = false               # callbacks and topics on loopback and private addresses (to try things out)
topics = []                         # when given, serve only topics below these addresses
only_own_self = false               # deny a topic whose document names another address as its own
aliases = {}                        # own addresses believed unseen: { "http://a.example/" = "https://b.example/" }
feeds = false                       # serve /feeds/URL: any feed, with this hub in its links
poll = false                        # look by itself at topics whose publishers do not ping
poll_min = 300.0                    # seconds
poll_max = 86400.0                  # a topic that never changes is looked at this rarely
trusted_proxies = []                # addresses and networks of proxies that may say whose request it is
proxy_header = "x-forwarded-for"    # where they say it; or "forwarded", or "proxy-protocol"
# publisher_tokens_file = "publishers.tokens"   # one a line: who has one may bring content along with a ping
# operator_token_file = "operator.token"        # opens /diagnostics
hosts = {}                          # names that it looks up here first: { "news.example.com" = "192.0.2.1" }
stop_grace = 5.0                    # seconds that requests under way get at SIGTERM

[hub.canary]                        # the hub sends itself a publication and looks whether it arrives
enabled = true
interval = 60.0                     # seconds between two
deadline = 30.0                     # seconds until one that has not arrived makes the hub unhealthy

# [hub.tls]                         # speak https only; the files are looked at again when they change
# certificate = "certificate.pem"   # with its chain
# key = "key.pem"                   # mode 0600
# look_every = 10.0                 # seconds

[naming]                            # both sides of a crossing must agree
scheme = "fqdn-path"                # or "zone"
hash = "sha1"                       # or "sha256"

[network]
# sealed_file = "sealed.toml"       # what no node between gateways may read, and the keys (`psph keys seal`); mode 0600
# Either attach to a node that runs already:
# attach = "/run/psph/node.sock"
# or run one here. These are the keys of `psph node`, without `socket`:

[node]
name = "gate-a"                     # unique in the network; no default
roles = []                          # "rendezvous", "topology"; node.domain names who may
# data = "var/node"                 # default: below the store's path

[node.domain]
seed = "psph"                       # the same at all nodes: link tags follow from it
# secret_file = "domain.secret"     # the same at all nodes (`psph keys setup`): seals links, lets nobody else in
open = false                        # true: no secret, and whoever reaches a link can join, read and forge
# graph_file = "graph.tsv"          # an edge list: choose tags over this graph instead of by chance
rendezvous = []                     # names of nodes: no other is believed to be rendezvous,
topology = []                       # or topology manager,
# key = "domain.pub"                # but those that show a grant signed with the domain's key

[[node.links]]                      # not a default: one section for each link
udp = "127.0.0.1:4001"              # listen here
peer = "127.0.0.1:4002"             # and talk to nobody else
mtu = 1472                          # bytes of a datagram

# [[node.links]]
# ethernet = "veth0"                # raw Ethernet instead of udp, peer and mtu
# impaired = { loss = 0.01, delay = 0.02 }      # worse on purpose, to try things out

[node.keys]                         # made by `psph keys`
# signing = "gateway.key"           # what this node signs with
# trusted = "trusted/"              # public keys that are believed
# grant = "gateway.grant"           # of this node's roles, by `psph keys grant`
require_signatures = false          # hand up only what a known key has signed

[node.times]
hello = 0.3                         # a neighbour that says nothing for a few of these is gone
lease = 30.0                        # a node that says nothing for so long is forgotten by the rendezvous

[node.retention]                    # how much of each item's past is kept for gateways that were away
count = 1024                        # versions
bytes = 33554432
age = 3600.0                        # seconds

[node.cache]                        # memory for versions of others that pass by: served from here when asked for again
bytes = 0                           # 0: none
strategy = "everywhere"             # or "sometimes", "sometimes SHARE", "package.module:function" of one's own

[admin]                             # dashboard, metrics and health, apart from the port that strangers use
# listen = "127.0.0.1:8090"         # without it there is no such port; on other addresses only with tokens
# viewer_tokens_file = "viewers.tokens"         # one a line: who has one may look
# operator_tokens_file = "operators.tokens"     # and who has one of these may act
peers = []                          # admin ports of other gateways: their part of a publication's way
# peer_token_file = "peer.token"    # what they know this gateway by
max_viewers = 500
requests_per_client = 50.0          # a second
audit_bytes = 16777216              # of the log of actions, audit.jsonl beside the store

# [admin.tls]                       # speak https only; the files are looked at again when they change
# certificate = "certificate.pem"   # with its chain
# key = "key.pem"                   # mode 0600
# look_every = 10.0                 # seconds

[limits]
subscriptions_per_subscriber = 10000
lease_min = 300                     # seconds; a subscriber who asks for less gets this
lease_default = 864000              # who does not say how long
lease_max = 2592000
connections = 20000                 # open at the same time
connections_per_client = 1000       # of one network; proxies and this machine's programs have no such bound
request_bytes = 65536               # of a form, or of content along with a ping
document_bytes = 8388608            # of a topic's document
requests_per_client = 200.0         # a second
requests_per_client_burst = 2000.0
requests_per_topic = 20.0           # pings and subscriptions a second
requests_per_topic_burst = 200.0
pending_checks = 100000             # subscriptions whose callbacks have not answered yet
subscriptions = 1000000             # in all; what is there is always renewed
subscriptions_per_network = 100000  # asked for by the addresses of one network (/24, /64)
subscriptions_per_address = 50000   # asked for by one address
pending_per_network = 10000         # asked for by one network, and its callbacks have not answered yet
new_subscriptions = 100.0           # requests a second of one network about subscriptions that are not there
new_subscriptions_burst = 2000.0
waiting_topics = 100000             # pinged and not fetched yet
fetches = 32                        # under way at the same time
deliveries = 128                    # under way at the same time
deliveries_per_host = 16
delivery_timeout = 30.0             # seconds that a callback may take
streams = 2000                      # open Server-Sent-Events streams of the hub
kept_publications = 100000          # delivered publications that are kept, for `Last-Event-ID` and replays
kept_bytes = 1073741824
kept_age = 604800.0                 # seconds

[discovery]                         # SRV records of _psirp._tcp in the DNS: docs/discovery.md
say_where = false                   # tell a subscriber who is denied which gateways the topic's domain names
nameservers = []                    # addresses; default: those of the machine
nameserver_port = 53                # of all of them
patience = 3.0                      # seconds that looking it up may take

# Keep the own record current. Not a default: without this section, somebody else does.
# [discovery.register]
# server = "ns1.example.com"        # the zone's primary server
# key_file = "update.key"           # tsig-keygen -a hmac-sha256 NAME > update.key, mode 0600
# target = "gw1.example.com"        # the name of this machine
# port = 443                        # default: where the hub listens
# domain = "example.com"            # default: gateway.domain
# zone = "example.com"              # default: the domain
# priority = 10                     # lower ones are tried first
# weight = 10                       # a share among equals
# ttl = 60                          # seconds that others may keep the record
# server_port = 53                  # where updates go
# interval = 300.0                  # seconds between two looks at the record

[web]                               # for people and scripts: chat page, and topics by GET and POST (docs/rest.md)
listen = ""                         # for instance "127.0.0.1:8081"; empty: there is no such port
# public_url = "https://chat.example.com/"      # where people find it; default: where it listens
names = []                          # host names that it answers to beside addresses and that of public_url
trusted_proxies = []                # addresses and networks of proxies that may say whose request it is
proxy_header = "x-forwarded-for"    # where they say it; or "forwarded", or "proxy-protocol"
anyone_may_publish = false          # whether a POST needs no token
# publish_tokens_file = "rest.tokens"           # one a line: who has one may publish
publish_below = []                  # when given, only topics that begin like one of these
cors_origins = []                   # sites whose scripts may use it, "*" for all
connections = 10000
connections_per_client = 1000
requests_per_client = 50.0          # a second
requests_per_client_burst = 500.0
publications_per_topic = 20.0       # by POST, a second
publications_per_topic_burst = 200.0
readers = 2000                      # open streams
readers_per_client = 50
waiting_bytes = 16777216            # for one slow reader, before it is cut off
published_bytes = 4194304           # of one POST

# [web.tls]                         # speak https only; the files are looked at again when they change
# certificate = "certificate.pem"   # with its chain
# key = "key.pem"                   # mode 0600
# look_every = 10.0                 # seconds

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

[mqtt]                              # a broker (docs/mqtt.md); without a door it is off
# listen = "127.0.0.1:1883"         # not a default
# tls_listen = "0.0.0.0:8883"       # with [mqtt.tls]
websocket = ""                      # a path of the port of [web], like "/mqtt"
# domain = "example.com"            # whose names its topics are; default: gateway.domain
allow_anonymous = false             # let in who shows neither password nor token
# users_file = "users.txt"          # lines as mosquitto_passwd writes them, mode 0600
# tokens_file = "mqtt.tokens"       # one a line: who shows one as password is let in
clients = 20000                     # connected at the same time
clients_per_network = 1000          # of one network; this machine's programs have no such bound
sessions = 100000                   # of clients that are away, too
subscriptions = 1000                # of one session
queued = 50000                      # messages that wait for one session, at most 60000
queued_bytes = 67108864             # and their bytes
retained = 100000                   # messages, of all topics
retained_bytes = 268435456
packet_bytes = 2000000              # of one packet; 5.0 clients are told so
inflight = 100                      # messages that one client is sent before it acknowledges
receive_maximum = 20                # what a 5.0 client may send before it is acknowledged
topic_aliases = 10                  # of a 5.0 client
keep_alive_max = 60                 # seconds; 5.0 clients that want more are told so, 0: as they want
figures_every = 10.0                # seconds between figures below $SYS, 0: none
extension = true                    # clients may ask for the redirection extension of 3.1
relay = false                       # hand on what they send others by it, whatever those are subscribed to
redirect = ""                       # HOST:PORT of another broker, to which all clients are sent; at a reload, too
redirect_moved = false              # for good
redirect_active = false             # the other broker knows their topics already

# [[mqtt.bridge]]                   # to the operator's own broker; one section for each
# name = "plant"
# server = "127.0.0.1:1883"         # HOST:PORT
# outgoing = ["kitchen/#"]          # filters of this broker
# incoming = ["plant/#"]            # filters of the other one
# share = "gateways"                # several gateways take what comes in by turns
# qos = 1                           # at most
# user = "psph"
# password_file = "bridge.password" # mode 0600

# [mqtt.tls]                        # for mqtt.tls_listen; the files are looked at again when they change
# certificate = "certificate.pem"   # with its chain
# key = "key.pem"                   # mode 0600
# look_every = 10.0                 # seconds

[bootstrapping]                     # topics of other domains; what others may want of gateway.zones
unmanaged = "deny"                  # a topic that nobody in the network answers for: "deny" or "accept"
answer_timeout = 8.0                # seconds until a subscriber whose topic nobody answers for is denied
lease = 3600.0                      # how long a request to a zone's manager holds; it is renewed at half of that
unconfirmed = 120.0                 # a request whose subscriber never confirmed is taken back
max_zones = 10000                   # zones of others that subscribers here may want something of
manager_keys = []                   # hashes of the keys of the managers that are believed; none: everybody
max_lease = 86400.0                 # from here on about the zones managed here
max_requesters = 10000
max_topics_per_requester = 2000
max_topics = 100000
requester_keys = []                 # hashes of the keys of the gateways that may ask; none: everybody
upstream_lease = 864000             # what a topic's own hub is asked for
upstream_confirm = 3.0              # how long that hub may take to confirm before it counts as accepted
upstream_at_once = 16
secret_over_http = true             # give hubs without https a secret too
poll_hubless = false                # look at topics that name no hub, rather than deny them
poll_every = 300.0

[traces]                            # for psph report
# directory = "var/traces"          # a run below it for every start; without it nothing is traced
rate = 1.0                          # the share of publications that is traced
format = "auto"                     # or "parquet", "jsonl"
max_bytes = 1073741824              # of one run; its oldest files go first
# run = "name"                      # the same at several gateways, if their traces are to be put together

[access]                            # who may publish and subscribe: the first rule that matches decides
default = "allow"                   # when none does; or "deny"

# [[access.rules]]                  # all that a rule states must hold; what it leaves out always does
# effect = "deny"                   # or "allow"
# acts = ["publish", "subscribe"]
# zones = ["example.com"]           # domains with all below them
# topics = ["example.com/private/"] # one that ends in a slash stands for all below it
# callbacks = ["https://reader.example/"]       # of who subscribes
# clients = ["10.0.0.0/8"]          # addresses of who pings
# token = true                      # who pings has a publisher's token
# origin = "network"                # the publication comes from the PSIRP network; or "web"
# signers = ["<hash of a key>"]     # and is signed with one of these keys (`psph keys show`)
# reason = "not here"               # what is answered
"""

"""The applications of one node: what each has asked for, what it gets, and what is cleaned up when it goes.

The network knows the node only. Its publications, subscriptions and questions are shared among applications by
`publishing`, `subscribing` and `questions`; here applications come and go, and their requests find their way.

Sans-I/O: requests come in through `request`, everything an application is told goes out through its `tell`.
"""

from collections.abc import Callable

from identifiers import ItemId
from psirp_stack.control.codes import Code
from psirp_stack.control.messages import ScopePublished, ScopeUnpublished, Served
from psirp_stack.node import attachment
from psirp_stack.node.applications import Application, RequestTableConfig, item_of, nobody
from psirp_stack.node.attachment import Asked, Consumed, NodeStatus, Told
from psirp_stack.node.getting import GetRequests
from psirp_stack.node.intents import Key, SubscriptionIntents
from psirp_stack.node.publishing import PublishRequests, WhenDone
from psirp_stack.node.questions import QuestionRequests
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.node.subscribing import SubscribeRequests
from psirp_stack.pull.service import PullService
from psirp_stack.rendezvous.declarations import DeclaredRole
from psirp_stack.transport.events import VersionArrived, VersionSkipped
from psirp_stack.transport.receiver import Receiver
from psirp_stack.transport.sender import Sender
from psirp_stack.transport.versions import Version


class RequestTable:
    """Where the applications of a node are served."""

    def __init__(
        self,
        intents: SubscriptionIntents,
        sender: Sender,
        receiver: Receiver,
        *,
        when_done: WhenDone,
        status: Callable[[], str],
        paths: Callable[[attachment.AskPaths], str],
        signatures: NodeSignatures,
        pulls: PullService,
        config: RequestTableConfig | None = None,
        published: Callable[[ItemId, Version], None] | None = None,
    ) -> None:
        self.config = config if config is not None else RequestTableConfig()
        self.applications: list[Application] = []
        self._status = status
        self._paths = paths
        self._publishing = PublishRequests(self.config, intents, sender, signatures, when_done)
        self._publishing.published = published
        self._subscribing = SubscribeRequests(self.config, intents, receiver, signatures, self._publishing, pulls)
        self._questions = QuestionRequests(intents)
        self._getting = GetRequests(intents, pulls, signatures)
        intents.on_withdrawn = self._withdrawn

    @property
    def published_items(self) -> int:
        return len(self._publishing)

    @property
    def subscribed_items(self) -> int:
        return len(self._subscribing)

    @property
    def handed_out(self) -> int:
        return self._subscribing.handed_out

    @property
    def stuck(self) -> int:
        """Times an application was no longer waited for."""
        return self._subscribing.stuck

    # Applications come and go.

    def attach(self, name: str, tell: Callable[[Told], None]) -> Application | None:
        """A new application; None when there are too many."""
        if len(self.applications) >= self.config.max_applications:
            return None
        application = Application(name, tell)
        self.applications.append(application)
        return application

    def detach(self, application: Application, now: float) -> None:
        """Withdraw everything that an application had, as if it had said so itself."""
        if application not in self.applications:
            return
        self.applications.remove(application)
        application.tell = nobody
        for item in list(application.parcels):
            self._subscribing.leave(application, item, now)
        for item in list(application.publishes):
            self._publishing.leave(application, item, now)
        for scope in list(application.watches):
            self._questions.stop_watching(application, scope, now)

    def request(self, application: Application, request: Asked | Consumed, now: float) -> None:
        if application not in self.applications:
            return
        if isinstance(request, Consumed):
            self._subscribing.consumed(application, item_of(request.sid, request.rid), now)
            return
        if isinstance(request, (attachment.Publish, attachment.Advertise, attachment.Subscribe)):
            held = len(application.parcels) + len(application.publishes)
            if held >= self.config.max_items_per_application and not _has(application, request):
                application.done(request, Code.LIMIT_REACHED, f"an application has at most {held} items")
                return
        match request:
            case attachment.Publish():
                self._publishing.publish(application, request, now)
            case attachment.Advertise():
                self._publishing.advertise(application, request, now)
            case attachment.Withdraw():
                if self._publishing.leave(application, item_of(request.sid, request.rid), now):
                    application.done(request, Code.SUCCESS)
                else:
                    application.done(request, Code.ITEM_DOES_NOT_EXIST, "this application does not publish the item")
            case attachment.Subscribe():
                self._subscribing.subscribe(application, request, now)
            case attachment.Unsubscribe():
                self._subscribing.leave(application, item_of(request.sid, request.rid), now)
                application.done(request, Code.SUCCESS)
            case attachment.LocalPublishScope():
                self._questions.publish_scope(application, request, now)
            case attachment.LocalUnpublishScope():
                self._questions.unpublish_scope(application, request, now)
            case attachment.LocalSubscribeScope():
                self._questions.watch(application, request, now)
            case attachment.LocalUnsubscribeScope():
                self._questions.stop_watching(application, request.sid, now)
                application.done(request, Code.SUCCESS)
            case attachment.GetVersions():
                self._getting.get(application, request, now)
            case attachment.GetItems():
                self._getting.list(application, request, now)
            case attachment.AskExplanation():
                self._questions.explain(application, request, now)
            case attachment.AskStatus():
                application.tell(NodeStatus(request.number, self._status()))
            case attachment.AskPaths():
                application.tell(NodeStatus(request.number, self._paths(request)))

    # What the network brings.

    def arrived(self, event: VersionArrived, now: float) -> None:
        self._subscribing.arrived(event, now)

    def skipped(self, event: VersionSkipped) -> None:
        self._subscribing.skipped(event)

    def acknowledged(self, item: ItemId, now: float) -> None:
        """Receivers have confirmed something: there may be room for publications that wait."""
        self._publishing.acknowledged(item, now)

    def demand_may_have_changed(self, item: ItemId) -> None:
        """The network wants an item sent, or not any more."""
        self._publishing.demand_may_have_changed(item)

    def served(self, message: Served, now: float) -> None:
        self._subscribing.served(message, now)

    def scope_changed(self, message: ScopePublished | ScopeUnpublished) -> None:
        self._questions.scope_changed(message)

    def _withdrawn(self, key: Key, code: Code, reason: str) -> None:
        """The rendezvous took an intent back, for instance because a scope's policy changed."""
        role, sid, rid = key
        if role is DeclaredRole.SUBSCRIBES:
            self._subscribing.withdrawn(sid, rid, code)
        elif role is DeclaredRole.PUBLISHES:
            self._publishing.forget(item_of(sid, rid), code, reason)

    # Time.

    def next_timer(self) -> float | None:
        lingering, stuck = self._publishing.next_timer(), self._subscribing.next_timer()
        if lingering is None or stuck is None:
            return stuck if lingering is None else lingering
        return min(lingering, stuck)

    def handle_timer(self, now: float) -> None:
        self._publishing.handle_timer(now)
        self._subscribing.handle_timer(now)


def _has(application: Application, request: attachment.Publish | attachment.Advertise | attachment.Subscribe) -> bool:
    """Whether the request is about an item that the application has already."""
    item = item_of(request.sid, request.rid)
    return item in (application.parcels if isinstance(request, attachment.Subscribe) else application.publishes)

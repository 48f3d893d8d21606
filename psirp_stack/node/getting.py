"""Applications that ask for versions once, and for the items of a scope."""

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import Explanation, ItemList, ListItems, Reply
from psirp_stack.node import attachment
from psirp_stack.node.applications import Application, item_of
from psirp_stack.node.attachment import ItemsFound, ReceivedVersion, VersionGot
from psirp_stack.node.intents import SubscriptionIntents
from psirp_stack.node.signatures import NodeSignatures
from psirp_stack.pull.service import PullService
from psirp_stack.pull.task import PulledVersion
from psirp_stack.wire.codec import AuthenticationHeader


class GetRequests:
    """Passes on what applications ask for, and hands them what comes."""

    def __init__(self, intents: SubscriptionIntents, pulls: PullService, signatures: NodeSignatures) -> None:
        self._intents = intents
        self._pulls = pulls
        self._signatures = signatures

    def get(self, application: Application, request: attachment.GetVersions, now: float) -> None:
        def handed_up(pulled: PulledVersion) -> None:
            version = received(request.sid, request.rid, pulled, self._signatures)
            application.tell(VersionGot(request.number, version, pulled.holder))

        def over(code: Code, reason: str) -> None:
            application.done(request, code, reason)

        self._pulls.start(item_of(request.sid, request.rid), request.first, request.last, handed_up, over, now)

    def list(self, application: Application, request: attachment.GetItems, now: float) -> None:
        def answered(answer: Explanation | ItemList | Reply) -> None:
            if isinstance(answer, ItemList):
                application.tell(ItemsFound(request.number, answer.rids, answer.more))
            elif isinstance(answer, Reply):
                application.done(request, Code(answer.code), answer.reason)

        self._intents.explain(
            lambda number: ListItems(number, request.sid, request.prefix, request.after), answered, now
        )


def received(sid: bytes, rid: bytes, pulled: PulledVersion, signatures: NodeSignatures) -> ReceivedVersion:
    """A version that was asked for, as applications see it."""
    version = pulled.version
    signed = signatures.verifies and version.authentication
    return ReceivedVersion(
        sid,
        rid,
        version.version_id,
        version.epoch,
        version.number,
        version.published_ms,
        version.attributes,
        version.content,
        AuthenticationHeader.unpack(version.authentication, 0).signer if signed else None,
    )

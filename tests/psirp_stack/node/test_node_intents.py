"""A node's dealings with the rendezvous: declared once, withdrawn once, and declared again when out of step."""

import pytest

from psirp_stack.control.codes import Code
from psirp_stack.control.messages import (
    MAX_ENTRIES,
    DeclarationRefused,
    DeclarationsRefused,
    Declare,
    Explain,
    Explanation,
    KeepAlive,
    PublishItem,
    PublishScope,
    RendezvousRequest,
    Reply,
    ScopePolicy,
    SubscribeItem,
    SubscribeScope,
    UnpublishItem,
)
from psirp_stack.node.intents import IntentConfig, Key, SubscriptionIntents
from psirp_stack.rendezvous.declarations import WHOLE_SCOPE, DeclaredRole, declaration_hash
from tests.psirp_stack.simulated import scope

S, X, Y = scope(1), scope(2), scope(3)


class Answers:
    def __init__(self) -> None:
        self.got: list[tuple[Code, str]] = []

    def __call__(self, code: Code, reason: str) -> None:
        self.got.append((code, reason))

    @property
    def codes(self) -> list[Code]:
        return [code for code, _ in self.got]


@pytest.fixture
def intents() -> SubscriptionIntents:
    made = SubscriptionIntents(7, config=IntentConfig(keep_alive=10.0, wait_for_rendezvous=30.0, max_unanswered=5))
    made.rendezvous_is("r", 0.0)
    made.handle_timer(0.0)
    first = made.next_message(0.0)
    assert isinstance(first, KeepAlive)
    made.receive(Reply(first.number, Code.SUCCESS), 0.0)
    return made


def said(intents: SubscriptionIntents, now: float = 1.0) -> list[RendezvousRequest]:
    messages = []
    while (message := intents.next_message(now)) is not None:
        messages.append(message)
    return messages


def granted(intents: SubscriptionIntents, role: DeclaredRole, rid: bytes) -> None:
    intents.want(role, S, rid, Answers(), 1.0)
    for message in said(intents):
        intents.receive(Reply(message.number, Code.SUCCESS), 1.0)


def test_a_wish_is_declared_once_and_all_who_have_it_are_answered(intents: SubscriptionIntents) -> None:
    first, second, late = Answers(), Answers(), Answers()
    intents.want(DeclaredRole.SUBSCRIBES, S, X, first, 1.0)
    intents.want(DeclaredRole.SUBSCRIBES, S, X, second, 1.0)
    (request,) = said(intents)
    assert isinstance(request, SubscribeItem)
    assert first.got == second.got == []
    intents.receive(Reply(request.number, Code.SUCCESS), 1.1)
    intents.want(DeclaredRole.SUBSCRIBES, S, X, late, 1.2)
    assert first.codes == second.codes == late.codes == [Code.SUCCESS]
    assert said(intents) == []


def test_a_refused_wish_can_be_declared_again(intents: SubscriptionIntents) -> None:
    refused = Answers()
    intents.want(DeclaredRole.PUBLISHES, S, X, refused, 1.0)
    (request,) = said(intents)
    intents.receive(Reply(request.number, Code.NOT_ALLOWED, "not among them"), 1.0)
    assert refused.got == [(Code.NOT_ALLOWED, "not among them")]
    assert (DeclaredRole.PUBLISHES, S, X) not in intents
    intents.want(DeclaredRole.PUBLISHES, S, X, refused, 2.0)
    assert isinstance(said(intents)[0], PublishItem)


def test_the_digest_is_that_of_what_is_granted(intents: SubscriptionIntents) -> None:
    granted(intents, DeclaredRole.PUBLISHES, X)
    granted(intents, DeclaredRole.SUBSCRIBES, Y)
    intents.leave(DeclaredRole.PUBLISHES, S, X, 2.0)
    (left,) = said(intents)
    assert isinstance(left, UnpublishItem)
    intents.receive(Reply(left.number, Code.SUCCESS), 2.0)
    intents.handle_timer(20.0)
    (alive,) = said(intents)
    assert alive == KeepAlive(alive.number, 7, declaration_hash(DeclaredRole.SUBSCRIBES, S, Y))


def test_no_keep_alive_while_an_answer_is_awaited_since_the_digest_is_not_certain(intents: SubscriptionIntents) -> None:
    intents.want(DeclaredRole.PUBLISHES, S, X, Answers(), 1.0)
    (request,) = said(intents)
    intents.handle_timer(20.0)
    assert said(intents) == []
    intents.receive(Reply(request.number, Code.SUCCESS), 20.0)
    intents.handle_timer(30.0)
    assert isinstance(said(intents)[0], KeepAlive)


def test_a_wish_that_the_rendezvous_took_and_did_not_live_to_answer_is_declared_again(
    intents: SubscriptionIntents,
) -> None:
    """Or no sign of life would ever be given again: everything that the node declared would be forgotten there."""
    answers = Answers()
    intents.want(DeclaredRole.SUBSCRIBES, S, X, answers, 1.0)
    (request,) = said(intents)
    intents.arrived(request.number, 1.0)
    intents.handle_timer(10.0)
    assert said(intents, 10.0) == [], "it may be busy"
    intents.handle_timer(20.0)
    (again,) = said(intents, 20.0)
    assert isinstance(again, SubscribeItem)
    assert again.number > request.number
    assert intents.never_answered == 1
    intents.receive(Reply(request.number, Code.DOES_NOT_EXIST), 21.0)  # late, and not about this
    assert answers.got == []
    intents.receive(Reply(again.number, Code.SUCCESS), 21.0)
    assert answers.codes == [Code.SUCCESS]
    intents.handle_timer(30.0)
    (alive,) = said(intents, 30.0)
    assert isinstance(alive, KeepAlive)
    assert alive.digest == declaration_hash(DeclaredRole.SUBSCRIBES, S, X)


def test_what_is_still_on_its_way_is_not_sent_again(intents: SubscriptionIntents) -> None:
    intents.want(DeclaredRole.SUBSCRIBES, S, X, Answers(), 1.0)
    assert len(said(intents)) == 1
    for now in (10.0, 20.0, 1000.0):
        intents.handle_timer(now)
        assert said(intents, now) == []
    assert intents.never_answered == 0


def test_others_that_the_rendezvous_did_not_live_to_answer_are_told_and_signs_of_life_go_on(
    intents: SubscriptionIntents,
) -> None:
    granted(intents, DeclaredRole.PUBLISHES, X)
    made = Answers()
    explained: list[Explanation | Reply] = []
    intents.ask(lambda number: PublishScope(number, S, policy=ScopePolicy()), made, 2.0)
    intents.explain(lambda number: Explain(number, S, X), explained.append, 2.0)
    intents.leave(DeclaredRole.PUBLISHES, S, X, 2.0)
    for request in said(intents, 2.0):
        intents.arrived(request.number, 2.0)
    intents.handle_timer(20.0)
    assert made.codes == [Code.UNREACHABLE]
    assert "never answered" in made.got[0][1]
    assert [Code(reply.code) for reply in explained if isinstance(reply, Reply)] == [Code.UNREACHABLE]
    (alive,) = said(intents, 20.0)
    assert isinstance(alive, KeepAlive), "the digest says what was withdrawn"
    assert alive.digest == 0


def test_out_of_step_declares_everything_again_in_parts(intents: SubscriptionIntents) -> None:
    rids = [scope(number) for number in range(10, 10 + MAX_ENTRIES + 5)]
    for rid in rids:
        granted(intents, DeclaredRole.SUBSCRIBES, rid)
    intents.handle_timer(20.0)
    (alive,) = said(intents)
    intents.receive(Reply(alive.number, Code.OUT_OF_STEP), 20.0)
    parts = said(intents)
    assert [(part.part, part.parts) for part in parts if isinstance(part, Declare)] == [(0, 2), (1, 2)]
    assert sorted(entry.rid for part in parts if isinstance(part, Declare) for entry in part.entries) == rids
    assert intents.redeclared == 1


def test_what_the_rendezvous_takes_back_is_told(intents: SubscriptionIntents) -> None:
    told: list[tuple[Key, Code, str]] = []
    intents.on_withdrawn = lambda key, code, reason: told.append((key, code, reason))
    granted(intents, DeclaredRole.PUBLISHES, X)
    refused = DeclarationRefused(int(DeclaredRole.PUBLISHES), S, X, Code.NOT_ALLOWED, "the policy changed")
    intents.receive(DeclarationsRefused(0, (refused, refused)), 2.0)
    assert told == [((DeclaredRole.PUBLISHES, S, X), Code.NOT_ALLOWED, "the policy changed")]
    assert not intents.granted((DeclaredRole.PUBLISHES, S, X))
    intents.handle_timer(20.0)
    (alive,) = said(intents)
    assert alive == KeepAlive(alive.number, 7, 0)


def test_who_waits_when_a_wish_is_withdrawn_is_told(intents: SubscriptionIntents) -> None:
    waiting = Answers()
    intents.want(DeclaredRole.WATCHES, S, WHOLE_SCOPE, waiting, 1.0)
    intents.leave(DeclaredRole.WATCHES, S, WHOLE_SCOPE, 1.0)
    asked, left = said(intents)
    assert isinstance(asked, SubscribeScope)
    assert waiting.codes == [Code.DOES_NOT_EXIST]
    intents.receive(Reply(asked.number, Code.SUCCESS), 2.0)
    intents.receive(Reply(left.number, Code.SUCCESS), 2.0)
    assert not intents.granted((DeclaredRole.WATCHES, S, WHOLE_SCOPE))
    assert intents.unanswered == 0


def test_leaving_and_wanting_again_before_the_first_answer_ends_wanted(intents: SubscriptionIntents) -> None:
    again = Answers()
    intents.want(DeclaredRole.SUBSCRIBES, S, X, Answers(), 1.0)
    intents.leave(DeclaredRole.SUBSCRIBES, S, X, 1.0)
    intents.want(DeclaredRole.SUBSCRIBES, S, X, again, 1.0)
    first, left, second = said(intents)
    for number in (first.number, left.number):
        intents.receive(Reply(number, Code.SUCCESS), 2.0)
    # The answer to the first request is not the answer to the second.
    assert again.got == []
    intents.receive(Reply(second.number, Code.SUCCESS), 2.0)
    assert again.codes == [Code.SUCCESS]
    intents.handle_timer(20.0)
    (alive,) = said(intents)
    assert isinstance(alive, KeepAlive)
    assert alive.digest == declaration_hash(DeclaredRole.SUBSCRIBES, S, X)


def test_too_many_unanswered_requests_are_refused(intents: SubscriptionIntents) -> None:
    answers = [Answers() for _ in range(7)]
    for number, answer in enumerate(answers):
        intents.want(DeclaredRole.SUBSCRIBES, S, scope(100 + number), answer, 1.0)
    assert [answer.codes for answer in answers] == [[]] * 5 + [[Code.LIMIT_REACHED]] * 2
    more = Answers()
    intents.ask(lambda number: PublishScope(number, S, policy=ScopePolicy()), more, 1.0)
    assert more.codes == [Code.LIMIT_REACHED]
    explained: list[Explanation | Reply] = []
    intents.explain(lambda number: Explain(number, S, X), explained.append, 1.0)
    assert isinstance(explained[0], Reply)
    assert explained[0].code == Code.LIMIT_REACHED


def test_without_a_rendezvous_requests_wait_and_then_fail_with_a_reason() -> None:
    intents = SubscriptionIntents(1, config=IntentConfig(wait_for_rendezvous=30.0))
    answer = Answers()
    intents.want(DeclaredRole.SUBSCRIBES, S, X, answer, 0.0)
    assert intents.next_message(1.0) is None
    assert intents.next_timer() == 30.0
    intents.handle_timer(30.0)
    assert answer.codes == [Code.NO_RENDEZVOUS]
    assert intents.next_timer() is None


def test_explanations_and_failures_find_who_asked(intents: SubscriptionIntents) -> None:
    got: list[Explanation | Reply] = []
    intents.explain(lambda number: Explain(number, S, X), got.append, 1.0)
    intents.explain(lambda number: Explain(number, S, Y), got.append, 1.0)
    first, second = said(intents)
    intents.receive(Explanation(first.number, True, True, ("a",), (), ScopePolicy()), 1.0)
    intents.failed(second.number, Code.UNREACHABLE, "did not answer", 2.0)
    assert isinstance(got[0], Explanation)
    assert isinstance(got[1], Reply)
    assert intents.unanswered == 0
    intents.receive(Explanation(first.number, True, True, (), (), ScopePolicy()), 3.0)  # said twice
    assert len(got) == 2

from serving.limits import Limiter, Rate
from serving.tokens import WRONG_TOKENS, TokenGuesses, is_one_of

TOKENS = ("right", "other")


def test_every_token_is_found_and_nothing_else() -> None:
    assert is_one_of("right", TOKENS)
    assert is_one_of("other", iter(TOKENS))
    assert not is_one_of("righ", TOKENS)
    assert not is_one_of("right", ())
    assert not is_one_of("\udcff", TOKENS)


def test_who_guesses_learns_nothing_more_after_a_few_tries() -> None:
    guesses = TokenGuesses()
    for _ in range(int(WRONG_TOKENS.burst)):
        assert guesses.wait("net", 0.0) == 0.0
        assert not guesses.is_known("wrong", TOKENS, "net", 0.0)
    wait = guesses.wait("net", 0.0)
    assert wait == 1 / WRONG_TOKENS.per_second
    assert guesses.wait("another net", 0.0) == 0.0
    assert guesses.wait("net", wait - 0.01) > 0.0
    assert guesses.wait("net", wait) == 0.0
    assert guesses.is_known("right", TOKENS, "net", wait)
    assert guesses.wait("net", wait) == 0.0  # right ones take nothing


def test_looking_takes_nothing() -> None:
    limiter = Limiter(Rate(1.0, 1.0), 10)
    assert [limiter.wait("key", 0.0) for _ in range(3)] == [0.0] * 3
    assert len(limiter) == 0
    assert limiter.take("key", 0.0) == 0.0
    assert limiter.wait("key", 0.25) == 0.75

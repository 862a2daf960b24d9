"""Who can take a prompt."""

from dynamo_router.workers.engine_facts import EngineFacts
from dynamo_router.workers.prompt_limits import PromptLimits


def test_engines_that_say_nothing_take_everything() -> None:
    limits = PromptLimits({1: EngineFacts(), 2: EngineFacts()})
    assert limits.check(10**9, 2**32 - 1) == (set(), None)
    assert PromptLimits({}).check(5, 5) == (set(), None)


def test_a_prompt_goes_where_it_fits() -> None:
    limits = PromptLimits(
        {
            1: EngineFacts(max_input_len=10, vocab_size=100),
            2: EngineFacts(max_seq_len=20, vocab_size=50),
            3: EngineFacts(max_input_len=20),
        }
    )
    assert limits.check(10, 49) == (set(), None)
    assert limits.check(11, 49) == ({1}, None)
    assert limits.check(10, 50) == ({2}, None)
    assert limits.check(20, 99) == ({1, 2}, None)


def test_what_nobody_takes_is_refused_by_the_widest_limit() -> None:
    facts = {1: EngineFacts(max_input_len=10), 2: EngineFacts(max_input_len=30, vocab_size=50)}
    unfit, refusal = PromptLimits(facts).check(31, 3)
    assert unfit == {1, 2} and refusal is not None and "limit of 30" in refusal
    unfit, refusal = PromptLimits({2: facts[2]}).check(3, 50)
    assert refusal is not None and "has 50 tokens" in refusal


def test_a_prompt_may_be_refused_by_each_for_another_reason() -> None:
    facts = {
        1: EngineFacts(max_input_len=10, vocab_size=100),
        2: EngineFacts(max_input_len=20, vocab_size=50),
    }
    unfit, refusal = PromptLimits(facts).check(15, 70)
    assert (
        unfit == {1, 2}
        and refusal == "token id 70 is out of range: the model's vocabulary has 50 tokens"
    )


def test_an_answer_goes_where_prompt_and_answer_fit() -> None:
    limits = PromptLimits(
        {1: EngineFacts(max_seq_len=300), 2: EngineFacts(max_seq_len=3000, vocab_size=50)}
    )
    assert limits.check(100, 3, 200) == (set(), None)
    assert limits.check(100, 3, 201) == ({1}, None)
    assert limits.check(301, 3, 0) == ({1}, None)
    assert limits.check(100, 3, 2901) == (set(), None)  # no context holds it: the engine says so
    assert limits.check(301, 3, 2900) == ({1}, None)
    assert limits.check(100, 60, 201) == ({2}, None)  # only the narrow one knows the token
    assert limits.check(3001, 3, 1).refusal is not None


def test_a_context_that_is_not_known_holds_any_answer() -> None:
    limits = PromptLimits({1: EngineFacts(max_seq_len=300), 2: EngineFacts()})
    assert limits.check(100, 3, 201) == ({1}, None)
    assert PromptLimits({1: EngineFacts(max_seq_len=300)}).check(100, 3, 201) == (set(), None)

"""When an address is left alone, and what is remembered, by a clock of the test's."""

from tollgate_client import BreakerRules, Decision, RetryRules
from tollgate_client.addresses import Ring
from tollgate_client.attempts import RetryBudget
from tollgate_client.breaker import Breaker, State
from tollgate_client.contract import FRAUD_INPUTS
from tollgate_client.fallback import DecisionCache
from tollgate_client.inputs import encode_purchase

RULES = BreakerRules(failures_in_a_row=3, recent_calls=10, open_s=1.0, jitter=0.0)


class Clock:
    """A clock that stands still until it is told otherwise."""

    now_s = 100.0

    def __call__(self):
        return self.now_s


def opened():
    """A breaker that has just opened, and its clock."""
    clock = Clock()
    breaker = Breaker(RULES, clock)
    for _ in range(3):
        breaker.failed()
    return breaker, clock


def test_failures_in_a_row_open_it_and_one_answer_between_does_not():
    """Two, an answer, two: closed; a third: open."""
    breaker = Breaker(RULES, Clock())
    for failed in (True, True, False, True, True):
        breaker.failed() if failed else breaker.succeeded()
    assert breaker.allows()
    breaker.failed()
    assert breaker.state is State.OPEN
    assert not breaker.allows()


def test_half_of_the_last_calls_open_it():
    """A server that fails every other call is left alone too."""
    breaker = Breaker(RULES, Clock())
    for _ in range(5):
        breaker.succeeded()
        breaker.failed()
    assert breaker.state is State.OPEN


def test_one_call_is_let_through_after_a_while_and_decides():
    """An answer closes it, a failure keeps it open for as long again."""
    breaker, clock = opened()
    clock.now_s += 0.99
    assert not breaker.allows()
    clock.now_s += 0.02
    assert breaker.allows()
    assert breaker.state is State.HALF_OPEN
    assert not breaker.allows()
    breaker.failed()
    assert breaker.state is State.OPEN
    assert not breaker.allows()
    clock.now_s += 1.01
    assert breaker.allows()
    breaker.succeeded()
    assert breaker.state is State.CLOSED
    assert breaker.opened == 1


def test_a_trial_whose_end_is_never_told_is_followed_by_another():
    """A caller that was cancelled does not close an address for ever."""
    breaker, clock = opened()
    clock.now_s += 1.01
    assert breaker.allows()
    clock.now_s += 1.01
    assert breaker.allows()


def test_addresses_take_turns_and_an_open_one_is_passed_over():
    """Each third call goes to each of three; with one away, to the other two."""
    clock = Clock()
    ring = Ring("abc", lambda name: (name, name), rules=RULES, clock=clock)
    assert [ring.pick(()).name for _ in range(6)] == list("abcabc")
    for _ in range(3):
        ring.addresses[1].breaker.failed()
    assert {ring.pick(()).name for _ in range(6)} == {"a", "c"}
    assert ring.pick(ring.addresses[:1] + ring.addresses[2:]) is None
    assert not ring.others([ring.addresses[0], ring.addresses[2]])


def test_retries_are_a_share_of_calls():
    """Two are free; then each fifth call earns one."""
    budget = RetryBudget(RetryRules(share=0.25, burst=2))
    assert [budget.spend() for _ in range(3)] == [True, True, False]
    for _ in range(4):
        budget.earn()
    assert [budget.spend() for _ in range(2)] == [True, False]
    for _ in range(100):
        budget.earn()
    assert [budget.spend() for _ in range(3)] == [True, True, False]


def purchase(number, amount=1.0):
    """A purchase by number."""
    values = {
        "transaction_id": f"t{number}",
        "customer_id": "c",
        "terminal_id": "m",
        "amount": amount,
        "event_time": 1_600_000_000_000_000,
    }
    return encode_purchase(values, inputs=FRAUD_INPUTS, fields={})


def test_memory_knows_the_same_purchase_and_no_other():
    """Same id and content; the first answer stays; an old one is none."""
    clock = Clock()
    memory = DecisionCache(10, age_s=60, clock=clock)
    first = Decision(decision="review", source="model")
    memory.remember(purchase(1), first)
    memory.remember(purchase(1), Decision(decision="decline", source="model"))
    assert memory.recall(purchase(1)) is first
    assert memory.recall(purchase(1, amount=2.0)) is None
    assert memory.recall(purchase(2)) is None
    clock.now_s += 60.1
    assert memory.recall(purchase(1)) is None


def test_memory_is_bounded_and_may_be_none():
    """The oldest leaves first."""
    memory = DecisionCache(3, age_s=60, clock=Clock())
    for number in range(5):
        memory.remember(purchase(number), Decision(decision="review", source="model"))
    known = [memory.recall(purchase(number)) is not None for number in range(5)]
    assert known == [False, False, True, True, True]
    nothing = DecisionCache(0, age_s=60, clock=Clock())
    nothing.remember(purchase(1), Decision(decision="review", source="model"))
    assert len(nothing) == 0

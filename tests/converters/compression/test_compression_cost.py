"""A trade says what a smaller model costs, and the gate holds it to what may be."""

import msgspec
import numpy as np
import pytest
from onnx import TensorProto, helper
from rich.console import Console
from sklearn.metrics import average_precision_score, roc_auc_score

from converters.compression.compression_cost import Judge, require, trade_table, weigh
from converters.onnx.graph import finish
from tollgate.errors import InputError, TradeError
from tollgate.repository.models.artifact_file import Figures, Gate, Trade
from tollgate.repository.models.speed import BATCHES
from tollgate.schema import FEATURES, PROBABILITIES


def model(*, power=1.0, mean=False, gap=False):
    """Make a graph of one column: P(1) is x ** power, or depends on the batch."""
    node = helper.make_node
    constants = [
        helper.make_tensor("power", TensorProto.FLOAT, [], [power]),
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
    ]
    nodes = [node("Pow", [FEATURES, "power"], ["bent"])]
    if mean:
        nodes += [
            node("ReduceMean", ["bent"], ["middle"], axes=[0], keepdims=1),
            node("Max", ["bent", "middle"], ["second"]),
        ]
    elif gap:
        nodes += [node("Log", ["bent"], ["second"])]
    else:
        nodes += [node("Identity", ["bent"], ["second"])]
    nodes += [
        node("Sub", ["one", "second"], ["first"]),
        node("Concat", ["first", "second"], [PROBABILITIES], axis=1),
    ]
    return finish(nodes, name="curve", columns=1, classes=2, constants=constants)


@pytest.fixture(scope="module")
def judge():
    """Scores of 0 to 1, and labels that follow them loosely."""
    random = np.random.default_rng(0)
    rows = random.random((500, 1)).astype(np.float32)
    label = (random.random(500) < rows[:, 0] ** 3).astype(int)
    return Judge(rows=rows, label=label, thresholds=(0.35, 0.8))


def test_flips_and_differences_are_those_of_the_scores(judge):
    """Counted by hand: rows with another decision at either threshold."""
    trade = weigh(model(), model(power=2.0), kind="prune", detail="bent", judge=judge)
    first = judge.rows[:, 0]
    second = first**2
    changed = np.digitize(first, [0.35, 0.8]) != np.digitize(second, [0.35, 0.8])
    assert (trade.rows, trade.flips) == (500, changed.sum())
    assert trade.flagged == (first >= 0.35).sum()
    assert trade.max_delta == pytest.approx(np.abs(first - second).max(), abs=1e-6)
    assert trade.batch_delta == 0.0


def test_quality_is_what_scikit_learn_measures(judge):
    """AUC and average precision; none without labels."""
    one = model(power=2.0)
    trade = weigh(model(), one, kind="prune", detail="", judge=judge)
    score = judge.rows[:, 0] ** 2
    assert trade.after.auc == pytest.approx(roc_auc_score(judge.label, score))
    assert trade.after.average_precision == pytest.approx(
        average_precision_score(judge.label, score)
    )
    assert tuple(trade.after.us_per_row) == BATCHES
    assert trade.after.size_bytes == len(one)
    plain = msgspec.structs.replace(judge, label=None)
    assert weigh(one, one, kind="prune", detail="", judge=plain).after.auc is None


def test_a_score_that_depends_on_its_batch_is_found(judge):
    """Alone a row is its own mean; in a batch it is not."""
    trade = weigh(model(), model(mean=True), kind="quantize", detail="", judge=judge)
    first = judge.rows[:, 0]
    batched = np.concatenate(
        [
            np.maximum(first[at : at + 32], first[at : at + 32].mean())
            for at in range(0, 500, 32)
        ]
    )
    assert trade.batch_delta == pytest.approx(np.abs(batched - first).max(), abs=1e-6)
    console = Console(width=200)
    with console.capture() as shown:
        console.print(trade_table(trade))
    assert "a score depends on its batch" in shown.get()


def test_no_probability_is_no_small_difference(judge):
    """Scores outside [0, 1] are infinitely far; NaN cannot be judged at all."""
    trade = weigh(model(), model(gap=True), kind="prune", detail="", judge=judge)
    assert trade.max_delta == float("inf")
    rows = np.concatenate([judge.rows, [[np.nan]]]).astype(np.float32)
    odd = Judge(rows=rows, label=np.append(judge.label, 1), thresholds=(0.5,))
    with pytest.raises(TradeError, match="1 rows get no probability"):
        weigh(model(), model(), kind="prune", detail="", judge=odd)


def test_no_gate_lets_an_answer_pass_that_is_no_probability(judge):
    """JSON has no infinity: such a trade could not be read back from the record."""
    wide = Gate(flips=1.0, auc_loss=1.0, ap_loss=1.0)
    bad = weigh(model(), model(gap=True), kind="quantize", detail="int8", judge=judge)
    words = r"quantize \(int8\) costs too much: some answers are no probabilities: NaN"
    with pytest.raises(TradeError, match=words):
        require(bad, wide)
    for changed in ({"max_delta": float("nan")}, {"batch_delta": float("inf")}):
        odd = msgspec.structs.replace(trade(), **changed)
        assert len(wide.problems(odd)) == 1
    assert wide.problems(trade()) == []


def test_nothing_is_measured_on_no_rows():
    """One line that names the argument."""
    empty = Judge(rows=np.zeros((0, 1), np.float32), label=None, thresholds=(0.5,))
    with pytest.raises(InputError, match=r"^sample: holds no rows"):
        weigh(model(), model(), kind="prune", detail="", judge=empty)


def trade(*, flips=0, auc=0.9, precision=0.5):
    """Make a trade of 1,000 rows from AUC 0.9 and average precision 0.5."""
    before = Figures(auc=0.9, average_precision=0.5, us_per_row={1: 8.0}, size_bytes=40)
    after = Figures(
        auc=auc, average_precision=precision, us_per_row={1: 2.0}, size_bytes=10
    )
    return Trade(
        kind="prune",
        detail="fewer",
        rows=1000,
        flips=flips,
        max_delta=0.1,
        before=before,
        after=after,
    )


@pytest.mark.parametrize(
    ("allowed", "lost", "words"),
    [
        ({"flips": 1}, {"flips": 2}, "2 of 1,000 decisions change"),
        ({"auc": 0.8991}, {"auc": 0.8989}, "the AUC falls from 0.9000 to 0.8989"),
        ({"precision": 0.496}, {"precision": 0.494}, "average precision falls"),
    ],
)
def test_the_gate_lets_pass_what_is_allowed_and_no_more(allowed, lost, words):
    """A thousandth of the rows, of the AUC 0.001, of the average precision 0.005."""
    require(trade(**allowed), Gate())
    with pytest.raises(TradeError, match=words) as caught:
        require(trade(**lost), Gate())
    assert caught.value.exit_status == 1
    require(trade(**lost), Gate(flips=0.01, auc_loss=0.01, ap_loss=0.01))


def test_a_gain_is_no_loss():
    """A better AUC passes the strictest gate."""
    require(trade(auc=0.95, precision=0.6), Gate(flips=0, auc_loss=0, ap_loss=0))


def test_the_table_shows_ratios():
    """Times and bytes as how many times less, quality as a difference."""
    console = Console(width=200)
    with console.capture() as shown:
        console.print(trade_table(trade(flips=5, auc=0.88)))
    text = shown.get()
    for part in ("-0.0200", "4.00 times less", "0.50%", "1,000 rows"):
        assert part in text


def test_a_trade_survives_its_record():
    """What is written to JSON reads back equal, batch sizes as numbers."""
    one = trade(flips=3)
    assert msgspec.json.decode(msgspec.json.encode(one), type=Trade) == one

"""Rows are decided again on the right columns, lists and fields, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from msgspec import structs

from tests.support.audit.decided_records import decided, opened
from tests.support.audit.random_records import REPOSITORY
from tests.support.audit.ranked_records import (
    ITEMS,
    WEIGHTS,
    catalogue_of,
    ranked,
    write_ranked_shop,
)
from tests.support.products.small_shop import (
    release_shop,
    write_linear_model,
    write_shop,
)
from tollgate.audit.releases.past_release import (
    OpenedRelease,
    ReleaseFiles,
    ReleaseModel,
    open_files,
    open_release,
)
from tollgate.challenger.shadow_scoring import Scorer, columns_for, recorded_decisions
from tollgate.engine.onnx_session import OnnxSession
from tollgate.errors import InputError
from tollgate.features.spec.feature_spec import FeatureSpec, load_spec
from tollgate.policy import RowFacts, load_policy
from tollgate.ranking.candidates import (
    Events,
    candidate_features,
    score_candidates,
)
from tollgate.ranking.catalogue import RETRIEVAL_FILE
from tollgate.ranking.rank import bind_rules, rank_row
from tollgate.ranking.ranking_record import decode_ranking, replay_input
from tollgate.redecide import PastRows, compare_policies
from tollgate.repository.hashes import hash_version
from tollgate.repository.releases.release_file import read_release
from tollgate.schema import CANDIDATE_FEATURES, RELEVANCE

Edited = Callable[[str, str], FeatureSpec]


@pytest.fixture
def edited(tmp_path: Path) -> Edited:
    """Read the product's spec with a replaced text."""
    text = (REPOSITORY / "fraud_features/1/features.yaml").read_text()

    def edit(old: str, new: str) -> FeatureSpec:
        assert old in text
        path = tmp_path / "features.yaml"
        path.write_text(text.replace(old, new, 1))
        return load_spec(path)

    return edit


def with_policy(
    release: OpenedRelease, path: Path, *edits: tuple[str, str]
) -> OpenedRelease:
    """Return a release with a policy in which texts are replaced."""
    text = (REPOSITORY / "fraud_decision/1/policy.yaml").read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    policy = load_policy(
        path,
        feature_names=release.spec.feature_names,
        fields=release.spec.fields,
        id_names=release.spec.id_names,
    )
    return msgspec.structs.replace(release, name="fraud-2", policy=policy)


def test_same_release_reproduces_its_decisions() -> None:
    """Decision, score to the bit, and degraded rows."""
    records = decided(150, degraded={3: 1, 9: 4})
    scored = Scorer(opened(), opened()).score(records)
    np.testing.assert_array_equal(scored.other.decision, records.decision)
    np.testing.assert_allclose(scored.other.score, records.score, rtol=1e-6)
    np.testing.assert_array_equal(scored.other.degraded, records.degraded != 0)
    assert not scored.other.failed.any()


def test_another_policy_decides_like_the_simulation(tmp_path: Path) -> None:
    """Compared with `policy simulate` on the same rows."""
    records = decided(300)
    other = with_policy(
        opened(), tmp_path / "policy.yaml", ("review: 0.35", "review: 0.02")
    )
    scored = Scorer(opened(), other).score(records)
    past = PastRows(
        RowFacts(
            probabilities=records.probabilities,
            features=records.features,
            cents=records.cents,
            degraded=records.degraded,
            event_time_us=records.event_time_us,
            list_hits=records.list_hits,
            fields=records.fields,
        ),
        records.decision,
        0,
    )
    outcome = compare_policies(past, new=other.policy)
    matrix = np.zeros((3, 3), int)
    np.add.at(matrix, (scored.recorded.decision, scored.other.decision), 1)
    assert matrix.tolist() == [list(line) for line in outcome.matrix]


def test_failing_model_gives_rows_without_a_score(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They count as errors and get the policy's fallback; the log has one entry."""
    records = decided(40)
    scorer = Scorer(opened(), opened())
    scorer._model = ReleaseModel(narrow_model(tmp_path / "model.onnx"))
    scored = scorer.score(records)
    assert scored.other.failed.all()
    assert scored.other.degraded.all()
    assert np.isnan(scored.other.score).all()
    assert set(scored.other.decision.tolist()) <= {1, 2}
    assert len(caplog.records) == 1


def narrow_model(path: Path) -> Path:
    """Write a model with two features."""
    shape = {
        name: onnx.helper.make_tensor_value_info(
            name, onnx.TensorProto.FLOAT, [None, 2]
        )
        for name in ("features", "probabilities")
    }
    node = onnx.helper.make_node("Identity", ["features"], ["probabilities"])
    graph = onnx.helper.make_graph(
        [node], "narrow", [shape["features"]], [shape["probabilities"]]
    )
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def test_latencies_are_those_in_the_server() -> None:
    """Feature step, model and its queue, decision step; in µs."""
    records = decided(5)
    took = recorded_decisions(records).took_us
    by_hand = [
        int(a) + int(b) + int(c)
        for a, b, c in zip(
            records.features_us, records.model_us, records.decision_us, strict=True
        )
    ]
    assert took.tolist() == by_hand


def test_challenger_may_leave_features_out(edited: Edited) -> None:
    """The others are found by their names, in the challenger's own order."""
    spec = edited("  - {name: during_night,            calendar: night}\n", "")
    other = msgspec.structs.replace(opened(), spec=spec)
    assert columns_for(opened().spec, other) == [0, 1, *range(3, 15)]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "name: during_night, ",
            "name: at_night, ",
            "its feature at_night is not in the vectors",
        ),
        (
            "{name: during_night,            calendar: night}",
            "{name: during_night,            calendar: weekend}",
            "its feature during_night is defined differently in the vectors",
        ),
        ("lateness: 1d", "lateness: 2d", "stores another state"),
    ],
)
def test_new_features_are_refused(
    edited: Edited, old: str, new: str, problem: str
) -> None:
    """The error names the feature and the limits of a shadow."""
    other = msgspec.structs.replace(opened(), spec=edited(old, new))
    with pytest.raises(InputError, match=problem):
        columns_for(opened().spec, other)


def test_lists_are_found_by_their_names(tmp_path: Path) -> None:
    """Their bits differ in another policy; a list that is not looked up is refused."""
    lists = "  - {name: stolen_cards, of: customer_id, meaning: deny}\n"
    more = "  - {name: watched, of: customer_id, meaning: deny}\n"
    rule = "rules:\n"
    asks = (
        "rules:\n  - name: watched_card\n    owner: fraud-operations\n"
        "    when: {watched: true}\n    at_least: review\n"
        "    code: CARD_REPORTED_STOLEN\n"
    )
    both = with_policy(
        opened(), tmp_path / "a.yaml", (lists, more + lists), (rule, asks)
    )
    records = decided(4)
    hits = np.array([0, 1, 2, 3], np.uint32)  # watched is bit 0, stolen_cards bit 1
    listed = msgspec.structs.replace(records, list_hits=hits)
    declined = Scorer(both, opened()).score(listed).other.decision == 2
    assert declined.tolist()[2:] == [True, True]
    plain = Scorer(opened(), opened()).score(records).other.decision == 2
    assert declined.tolist()[:2] == plain.tolist()[:2]
    with pytest.raises(InputError, match="does not look up its list watched of custo"):
        Scorer(opened(), both)


def test_lists_are_ranked_again_by_another_ranker(tmp_path: Path) -> None:
    """Each with the other model: the best score is that of `rank_row` with it."""
    champion = write_ranked_shop(tmp_path / "models")
    folder = tmp_path / "models/shop_model/2"
    folder.mkdir()
    weights = {**WEIGHTS, "popularity": -0.3, "is_popular": 9.0}
    write_linear_model(folder, champion.spec, weights=weights)
    records = ranked(60, by=champion)
    same = Scorer(champion, champion).score(records)
    np.testing.assert_array_equal(same.other.score, records.score)
    np.testing.assert_array_equal(same.other.decision, records.decision)
    release = read_release(tmp_path / "models", product="shop")
    release = structs.replace(
        release,
        name="shop-2",
        versions={**release.versions, "shop_model": 2},
        hashes={
            **release.hashes,
            **hash_version(tmp_path / "models", "shop_model", version=2),
        },
    )
    files = ReleaseFiles(release, archived={}, repository=tmp_path / "models")
    challenger = open_files(files)
    scored = Scorer(champion, challenger).score(records)
    assert scored.other.failed.sum() == scored.recorded.failed.sum() == 1  # row 5
    assert (scored.other.score != scored.recorded.score)[6:].mean() > 0.9
    assert (scored.other.took_us > 0).all()
    catalogue = catalogue_of()
    rules = challenger.policy.ranking
    assert rules is not None
    model = OnnxSession(folder / "model.onnx", intra_op_threads=1)
    retrieval = OnnxSession(
        tmp_path / "models/shop_candidates/1" / RETRIEVAL_FILE, intra_op_threads=1
    )
    for row in (0, 1, 2, 7, 59):
        given = replay_input(decode_ranking(records.details[row]), items=ITEMS)
        events = Events(
            items=given.history_items[None],
            actions=given.history_actions[None],
            age_s=given.history_age_s[None],
        )
        found = score_candidates(
            catalogue,
            retrieval,
            events,
            items=given.candidates[None],
            sources=given.sources[None],
        )
        features = candidate_features(catalogue, events, found)
        (relevance,) = model.run([RELEVANCE], {CANDIDATE_FEATURES: features})
        again = rank_row(
            structs.replace(given, relevance=relevance[0]),
            bind_rules(rules, catalogue),
        )
        best = again.scores[~np.isnan(again.scores)][0]
        assert scored.other.score[row] == best


def test_a_ranker_of_another_catalogue_is_refused(tmp_path: Path) -> None:
    """Its indices are those of other items."""
    champion = write_ranked_shop(tmp_path / "one")
    release_shop(tmp_path / "two", write_shop(tmp_path / "two"))
    other = open_release(
        "shop-1", archived=None, repository=tmp_path / "two", product="shop"
    )
    with pytest.raises(InputError, match="shop-1: its catalogue is not that of"):
        Scorer(champion, other)

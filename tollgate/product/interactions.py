"""
Create a product that ranks: catalogue, retrieval, ranker, policy, release.

Settings are chosen on the newest fifth of each user's events, and so is the weight of
the diversity. Then everything is learnt from the whole table.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.engine.onnx_session import OnnxSession
from tollgate.engine.ranking_context import ranking_dtype
from tollgate.errors import InputError, ServerError
from tollgate.features.spec.feature_spec import (
    SPEC_FILE,
    FeatureSpec,
    load_spec,
)
from tollgate.features.spec.spec_document import MAX_SPAN_DAYS
from tollgate.pipeline import publish_and_release, wait_for_store
from tollgate.policy import POLICY_FILE
from tollgate.product.creation import check_staged
from tollgate.product.files import (
    ASK_FILE,
    SCRIPT_FILE,
    ranking_step_names,
    request_tensors,
    slo_text,
)
from tollgate.product.placement import place, require_free
from tollgate.ranking.candidates import CANDIDATES, feature_names
from tollgate.ranking.catalogue import CATALOGUE_FILE, Catalogue
from tollgate.repository.models.model_files import MODEL_FILE
from tollgate.repository.releases.served_versions import load_policy_of, read_served
from tollgate.repository.slo import SLO_FILE
from tollgate.repository.versions import place_version, staged_version
from tollgate.schema import (
    ACTION,
    ACTIONS,
    CANDIDATE_FEATURES,
    EVENT_TIME,
    EXCLUDE,
    ITEM,
    LIST_OUTPUTS,
    MAX_BATCH_ROWS,
    MISSING,
    RANKED_TYPES,
    RELEVANCE,
    STORE_LOST,
    TRANSACTION_ID,
    Degraded,
    context_dtype,
    hash_words,
)
from tollgate.templating import render

if TYPE_CHECKING:
    from converters.converted import Converted
    from converters.ranking.diversity import DiversityChoice
    from converters.ranking.interactions import Interactions
    from converters.ranking.ranker import Ranker
    from converters.ranking.splits import Queries
    from converters.ranking.training import Choice, Scored, TrainedShop
    from tollgate.store.store_events import Purchases
    from tollgate_client import Recommendations

F32 = npt.NDArray[np.float32]
Report = Callable[[str, str], None]

LIST_ITEMS = 10  # of a request that names no count
WEAK_SHARE = 0.05  # of the held-out lists
_USER = "user_id"
_DAY_US = 86_400_000_000
_WINDOWS_DAYS = (365, 730, 1825, 3650)  # the longest window; the first that is enough
_LATENCY_OBJECTIVE_MS = 100
# Half of the model's layer. 100 trees take 0.7 ms for 200 candidates, on a core of an
# AMD EPYC.
_LIST_BUDGET_US = 20_000
_STORE_DEADLINE_MS = 20  # the same share of the objective as a payment's 5 of 50 ms
_MOST_MEASURED = 2_000  # users by whom the ranking is judged
_MOST_PROVEN = 20_000  # candidates on which the ranker is proven
_MOST_SERVED = 128  # users whose lists a server and this process both make
_TIMEOUT_S = 60.0
_TRIAL_DEADLINE_MS = 2_000  # a slow moment of this machine must not change a list
_TOLERANCE = 1e-5  # of a conversion's proof
_TEMPLATES = "tollgate/product/templates"
# Bits of lists that came from other events than the table's: the store was late.
_OTHER_EVENTS = STORE_LOST | Degraded.LAST_KNOWN_VECTOR | Degraded.COLD_START
_PURPOSES = {
    "CandidateStep": "Validate rows, read users' newest events, find candidates.",
    "RankingStep": "Turn the relevance of candidates into lists of items.",
}


class InteractionChoices(msgspec.Struct, frozen=True, kw_only=True):
    """
    The user's choices for a table of interactions.

    Attributes:
        product: The new product's name.
        table: The file.
        user, item, time: Columns with the user, the item and the time of each event.
        action: Column with a view, cart or purchase; None where all are views.
        category: Column with the item's category.
        id: Column with an id of each event; None makes ids of user and time.
    """

    product: str
    table: Path
    user: str
    item: str
    time: str
    action: str | None = None
    category: str | None = None
    id: str | None = None


class ListTrial(msgspec.Struct, frozen=True):
    """
    Lists of a server, compared with those that this process made.

    Attributes:
        lists: Number of equal lists.
        largest_difference: The greatest difference of a served score from the ranker's.
    """

    lists: int
    largest_difference: float


class CreatedRanking(msgspec.Struct, frozen=True, eq=False):
    """
    A created product that ranks.

    Attributes:
        trained: Its catalogue, retrieval and ranker.
        ndcg: NDCG@10 of its lists on the newest fifth of the events, learnt from the
            older ones.
        popular_ndcg: NDCG@10 of the most popular items there.
        trial: Lists when it was served.
    """

    trained: TrainedShop
    ndcg: float
    popular_ndcg: float
    trial: ListTrial


def create_interactions(
    choices: InteractionChoices, *, repository: Path, report: Report
) -> CreatedRanking:
    """
    Create a product and put it into a repository; a failure leaves that unchanged.

    Args:
        choices: The user's choices.
        repository: The model repository.
        report: Called with each finished step, and its result.

    Raises:
        InputError: Table, columns or name are unusable.
        ServerError: The product does not serve.
    """
    from tollgate.repository.versions import staging

    require_free(repository, choices.product)
    interactions = read_events(choices)
    report(
        "table read",
        f"{len(interactions):,} events of {len(interactions.user_ids):,} users with "
        f"{len(interactions.item_ids):,} items",
    )
    with staging(repository) as stage:
        staged = stage.version / "models"
        staged.mkdir(parents=True)
        created = _create(choices, interactions, staged, report=report)
        require_free(repository, choices.product)
        place(staged, repository=repository, product=choices.product)
    return created


def read_events(choices: InteractionChoices) -> Interactions:
    """
    Read the table; without a column of actions, every event is a view.

    Raises:
        InputError: Columns are missing or mean two things, or values are invalid.
    """
    from converters.ranking.interactions import read_interactions
    from tollgate.history.table import read_table

    interactions = read_interactions(
        choices.table,
        user=choices.user,
        item=choices.item,
        time=choices.time,
        action=choices.action,
        category=choices.category,
    )
    there = read_table(choices.table).columns
    if choices.id is not None and choices.id not in there:
        problem = f"column missing; the file has {', '.join(there)}"
        raise InputError(choices.table, problem, where=choices.id)
    for name, source in _aliases(choices).items():
        if name in there:
            problem = f"would be read in place of {source!r}: rename it in the table"
            raise InputError(choices.table, problem, where=name)
    if choices.action is None:
        views = np.full(len(interactions), ACTIONS.index("view"), np.int8)
        interactions = msgspec.structs.replace(interactions, actions=views)
    if int(_span_us(interactions)) == 0:
        problem = "all events have the same time: none is newer than another"
        raise InputError(choices.table, problem, where=choices.time)
    return interactions


def _span_us(interactions: Interactions) -> int:
    return int(interactions.time_us.max() - interactions.time_us.min())


def _aliases(choices: InteractionChoices) -> dict[str, str]:
    """Return the table's columns whose names differ from the product's, by those."""
    columns = {
        _USER: choices.user,
        ITEM: choices.item,
        EVENT_TIME: choices.time,
        ACTION: choices.action,
        TRANSACTION_ID: choices.id,
    }
    return {
        name: source for name, source in columns.items() if source not in (None, name)
    }


def _create(
    choices: InteractionChoices,
    interactions: Interactions,
    staged: Path,
    *,
    report: Report,
) -> CreatedRanking:
    """Train, write, publish, check and try the product in a staging folder."""
    from converters.ranking.diversity import diverse_lists
    from converters.ranking.metrics import mean_ndcg
    from converters.ranking.splits import newest_fifth, queries_of
    from converters.ranking.training import (
        HISTORY,
        choose_settings,
        fit_shop,
        ranker_name,
        retrieval_name,
        score_queries,
    )

    product = choices.product
    choice = choose_settings(interactions, history=HISTORY, seed=0)
    found = retrieval_name(choice.retrieval)
    report("settings chosen", f"the best of {len(choice.tried)}: {found}")
    trained = fit_shop(interactions, choice)
    split = newest_fifth(interactions)
    earlier = fit_shop(split.before, choice)
    queries = queries_of(split, repeats=choice.repeats).sample(_MOST_MEASURED, seed=0)
    report("trained", f"ranker: {ranker_name(choice.ranker)}")
    scored = score_queries(
        earlier.catalogue,
        OnnxSession(earlier.retrieval, intra_op_threads=1),
        split.before,
        queries,
        history=HISTORY,
        repeats=choice.repeats,
    )
    relevance = earlier.ranker.relevance(scored.features).astype(np.float32)
    spec = _write_files(staged, choices, trained, interactions=interactions)
    present = scored.retrieved.items >= 0
    best = np.where(present, relevance, -np.inf).max(axis=1)
    _write_policy(staged, spec, choice, best=best[np.isfinite(best)])
    lists = diverse_lists(
        earlier.catalogue,
        scored.retrieved.items,
        relevance,
        weight=choice.diversity.chosen.weight,
    )
    ndcg = mean_ndcg(lists, queries.relevant)
    popular = np.tile(earlier.catalogue.popular[0], (len(queries.users), 1))
    if not choice.repeats:
        for row, seen in enumerate(queries.seen):
            own = popular[row][~np.isin(popular[row], seen)]
            popular[row] = -1
            popular[row, : len(own)] = own
    popular_ndcg = mean_ndcg(popular, queries.relevant)
    report(
        "measured",
        f"NDCG@10 {ndcg:.4f} on the newest fifth of the events of "
        f"{len(queries.users):,} users; popular items {popular_ndcg:.4f}",
    )
    report("diversity", _diversity_text(choice.diversity))
    converted = _convert(
        staged,
        product,
        trained.ranker,
        scored=scored,
        comparison=f"NDCG@10 there {ndcg:.4f}, of popular items {popular_ndcg:.4f}",
        source=str(choices.table),
    )
    release = publish_and_release(
        converted,
        repository=staged,
        product=product,
        reason=f"made from {choices.table.name}",
    )
    report("converted, proven, published", f"release {release.name}")
    report("checked", "; ".join(check_staged(staged, product)) or "valid")
    with tempfile.TemporaryDirectory(prefix="tollgate-") as state:
        trial = run_list_trial(
            staged, trained, split.before, spec=spec, queries=queries, state=Path(state)
        )
    report(
        "served and ranked",
        f"{trial.lists:,} lists equal to those made here; scores equal to the "
        f"ranker's within {trial.largest_difference:.1e}",
    )
    _write_example(staged, product, trained.catalogue, interactions)
    return CreatedRanking(
        trained=trained, ndcg=ndcg, popular_ndcg=popular_ndcg, trial=trial
    )


def _diversity_text(diversity: DiversityChoice) -> str:
    chosen, plain = diversity.chosen, diversity.tried[0]
    if chosen.weight == 0:
        return f"weight 0: {diversity.tried[-1].weight:g} loses too much of the NDCG@10"
    return (
        f"weight {chosen.weight:g}: {chosen.diversity:.4f} instead of "
        f"{plain.diversity:.4f}, NDCG@10 {chosen.ndcg:.4f} instead of {plain.ndcg:.4f}"
    )


def _write_files(
    staged: Path,
    choices: InteractionChoices,
    trained: TrainedShop,
    *,
    interactions: Interactions,
) -> FeatureSpec:
    """Write everything but the policy and the model; return the features."""
    product = choices.product
    first, _, last = ranking_step_names(product)
    folder = staged / first / "1"
    folder.mkdir(parents=True)
    days = -(-_span_us(interactions) // _DAY_US)
    longest = next((one for one in _WINDOWS_DAYS if one >= days), _WINDOWS_DAYS[-1])
    text = render(
        f"{_TEMPLATES}/ranking_features.yaml.j2",
        {
            "product": product,
            "table": choices.table.name,
            "aliases": _aliases(choices),
            "most": trained.choice.history,
            "days": days,
            "longest": f"{min(longest, MAX_SPAN_DAYS - 1)}d",
        },
    )
    (folder / SPEC_FILE).write_text(text, "utf-8")
    spec = load_spec(folder / SPEC_FILE)
    texts = {
        **ranking_texts(spec, trained.catalogue),
        f"{product}/{SLO_FILE}": slo_text(
            product,
            objective_ms=_LATENCY_OBJECTIVE_MS,
            list_budget_us=_LIST_BUDGET_US,
        ),
        f"{product}/{SCRIPT_FILE}": render(
            f"{_TEMPLATES}/ranking_train.py.j2",
            {
                "product": product,
                "script": SCRIPT_FILE,
                "table": str(choices.table.resolve()),
                "columns": {
                    "user": choices.user,
                    "item": choices.item,
                    "time": choices.time,
                    "action": choices.action,
                    "category": choices.category,
                },
            },
        ),
    }
    for name, text in texts.items():
        path = staged / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    trained.save(folder)
    trained.catalogue.save(staged / last / "1")
    return spec


def ranking_texts(spec: FeatureSpec, catalogue: Catalogue) -> dict[str, str]:
    """Write all files that follow from features.yaml and the catalogue."""
    product = spec.product
    first, model, last = ranking_step_names(product)
    assert spec.history is not None
    ranking = ranking_dtype(candidates=CANDIDATES, history=spec.history.most)
    width = len(feature_names(catalogue))
    inputs = request_tensors(spec)
    inputs.append({"name": EXCLUDE, "type": "TYPE_STRING", "optional": True})
    own = {TRANSACTION_ID: "request_id"}
    values = {
        "product": product,
        "first": first,
        "model": model,
        "last": last,
        "max_batch_size": MAX_BATCH_ROWS,
        "candidates": CANDIDATES,
        "width": width,
        "row_kb": round(CANDIDATES * width * 4 / 1000),
        "batch_kb": round(MAX_BATCH_ROWS * CANDIDATES * width * 4 / 1000),
        "vector_size": len(spec.features),
        "context_size": context_dtype(spec.entity_names, spec.field_names).itemsize,
        "ranking_size": ranking.itemsize,
        "step_tensors": inputs,
        "tensors": [
            {**one, "name": own.get(str(one["name"]), one["name"])} for one in inputs
        ],
        "answer_types": RANKED_TYPES,
        "list_outputs": LIST_OUTPUTS,
        "store_deadline_ms": _STORE_DEADLINE_MS,
    }
    templates = {
        product: "ranking_ensemble",
        first: "candidates",
        model: "ranker",
        last: "ranking",
    }
    texts = {
        f"{name}/config.pbtxt": render(f"{_TEMPLATES}/{template}.pbtxt.j2", values)
        for name, template in templates.items()
    }
    for step, base in ((first, "CandidateStep"), (last, "RankingStep")):
        texts[f"{step}/1/model.py"] = render(
            f"{_TEMPLATES}/step.py.j2",
            {"step": step, "purpose": _PURPOSES[base], "base": base},
        )
    texts[f"{product}/1/.gitkeep"] = ""
    return texts


def _write_policy(
    staged: Path, spec: FeatureSpec, choice: Choice, *, best: F32
) -> None:
    """
    Write policy.yaml.

    Args:
        choice: Settings of the ranking.
        best: The greatest relevance of each held-out list.
    """
    from converters.ranking.diversity import MOST_LOST, WEIGHTS

    diversity = choice.diversity
    measured = (
        "Each item is the best of those left by (1 - weight) · relevance - weight · "
        f"similarity to an item before it. Of the weights 0, {WEIGHTS[1]:g}, … "
        f"{WEIGHTS[-1]:g} it is the last before the NDCG@10 falls by more than "
        f"{100 * MOST_LOST:g} %, by lists for the newest fifth of the users' events. "
        "Diversity is 1 - the mean cosine of two of the 10 items, by `vectors` of the "
        "catalogue."
    )
    figures = [
        f"weight {one.weight:<4g}  NDCG@10 {one.ndcg:.4f}, diversity "
        f"{one.diversity:.4f}"
        for one in dict.fromkeys(
            (diversity.tried[0], diversity.chosen, diversity.tried[-1])
        )
    ]
    text = render(
        f"{_TEMPLATES}/ranking_policy.yaml.j2",
        {
            "product": spec.product,
            "weak": float(f"{np.quantile(best, WEAK_SHARE):.4g}"),
            "weak_share": f"{100 * WEAK_SHARE:g} %",
            "lists": f"{len(best):,}",
            "items": LIST_ITEMS,
            "repeats": choice.repeats,
            "weight": diversity.chosen.weight,
            "measured": [measured, *figures],
        },
    )
    folder = staged / ranking_step_names(spec.product)[2] / "1"
    (folder / POLICY_FILE).write_text(text, "utf-8")


def _convert(
    repository: Path,
    product: str,
    ranker: Ranker,
    *,
    scored: Scored,
    comparison: str = "",
    source: str,
) -> Converted:
    """Convert a ranker, and prove it on the candidates of requests."""
    from converters.conversion import convert_model
    from converters.purpose import purpose_of
    from converters.sample import Sample
    from converters.sources.trained_ranker import trained_ranker

    purpose = purpose_of(repository, product)
    assert purpose.names is not None
    features = scored.features[scored.retrieved.items >= 0]
    count = min(len(features), _MOST_PROVEN)
    at = np.linspace(0, len(features) - 1, count).astype(int)
    sample = Sample(
        rows=features[at],
        names=purpose.names,
        described=f"{count:,} candidates of requests before the newest fifth of the "
        "users' events; it was chosen by this fifth, and has learnt from it",
        comparison=comparison,
        source=source,
    )
    return convert_model(
        trained_ranker(ranker), origin="the ranker", purpose=purpose, sample=sample
    )


def publish_ranking(
    trained: TrainedShop,
    interactions: Interactions,
    *,
    repository: Path,
    product: str,
) -> dict[str, int]:
    """
    Publish newly trained parts as the next version of each step.

    The release does not change. The steps' other files are those of the released
    versions.

    Args:
        trained: The parts.
        interactions: The table that they were trained on.
        repository: The model repository.
        product: Name of the product.

    Returns:
        Version by step.

    Raises:
        RepositoryError: The product is not valid, or the ranker breaks its budget.
        ServerError: The ranker does not load.
    """
    from converters.folder import write_converted
    from converters.ranking.splits import newest_fifth, queries_of
    from converters.ranking.training import score_queries
    from tollgate.server.publishing import publish

    served = read_served(repository, product)
    choice, split = trained.choice, newest_fifth(interactions)
    queries = queries_of(split, repeats=choice.repeats)
    scored = score_queries(
        trained.catalogue,
        OnnxSession(trained.retrieval, intra_op_threads=1),
        split.before,
        queries.sample(_MOST_MEASURED, seed=0),
        history=choice.history,
        repeats=choice.repeats,
    )
    converted = _convert(
        repository, product, trained.ranker, scored=scored, source=interactions.source
    )
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        folder = Path(name)
        write_converted(converted, folder / "model")
        published = publish(folder / "model", repository=repository, product=product)
        versions = {published.step: published.version}
        for step in (served.product.features_step, served.product.decision_step):
            path = served.file(step, name=CATALOGUE_FILE).parent
            shutil.copytree(path, folder / step)
            if step == served.product.features_step:
                trained.save(folder / step)
            else:
                trained.catalogue.save(folder / step)
            with staged_version(repository, step=step, source=folder / step) as staged:
                versions[step] = place_version(staged, repository=repository, step=step)
    return versions


def run_list_trial(
    repository: Path,
    trained: TrainedShop,
    past: Interactions,
    *,
    spec: FeatureSpec,
    queries: Queries,
    state: Path,
) -> ListTrial:
    """
    Serve a product for a moment, and compare lists with those made in this process.

    The users' events go into the server's store, moved in time so that the newest is
    of now. The lists here come from the table, the converted ranker and the policy.

    Args:
        repository: Repository that contains the product.
        trained: Its parts.
        past: Events before the requests.
        spec: Its features.
        queries: Requests; some of them are sent.
        state: A folder for the server.

    Raises:
        ServerError: It does not start, or its lists or scores differ.
    """
    from converters.ranking.diversity import policy_lists
    from converters.ranking.training import score_queries
    from tollgate.server.serving.embedded import serve
    from tollgate.store.event_writer import EventWriter
    from tollgate.store.redis.cluster_store import open_store

    product = spec.product
    _, model, last = ranking_step_names(product)
    queries = queries.sample(_MOST_SERVED, seed=1)
    past, queries = _distinct_times(past, queries)
    choice = trained.choice
    scored = score_queries(
        trained.catalogue,
        OnnxSession(trained.retrieval, intra_op_threads=1),
        past,
        queries,
        history=choice.history,
        repeats=choice.repeats,
    )
    session = OnnxSession(repository / model / "1" / MODEL_FILE, intra_op_threads=1)
    (relevance,) = session.run([RELEVANCE], {CANDIDATE_FEATURES: scored.features})
    rules = load_policy_of(repository / last / "1", spec).ranking
    assert rules is not None
    wanted = policy_lists(
        trained.catalogue,
        rules,
        scored.retrieved.items,
        relevance,
        events=scored.events,
        in_force=[0] * len(relevance),
    )
    source = trained.ranker.relevance(scored.features)
    patient = state / "models"
    shutil.copytree(repository, patient)
    wait_for_store(patient, product=product, deadline_ms=_TRIAL_DEADLINE_MS)
    with serve(patient, products=(product,), state=state) as server:
        store = open_store(server.store_url, deadline_s=_TIMEOUT_S)
        try:
            writer = EventWriter(spec, store, history=True)
            moved_us = time.time_ns() // 1000 - int(queries.now_us.max())
            for part in _events_of(past, queries, choice.history, moved_us=moved_us):
                writer.purchases(part)
        finally:
            store.close()
        answers = _served_lists(
            server.grpc_url, product, past, queries, moved_us=moved_us
        )
    names = [one.decode() for one in trained.catalogue.item_ids]
    largest = 0.0
    compared = 0
    for row, (answer, ranked) in enumerate(zip(answers, wanted, strict=True)):
        if answer.degraded & _OTHER_EVENTS:
            continue
        compared += 1
        user = past.user_ids[queries.users[row]]
        expected = tuple(names[item] for item in ranked if item >= 0)
        if answer.items != expected:
            problem = f"the list of {user} is {answer.items}, and {expected} here"
            raise ServerError(product, problem)
        place = {int(item): at for at, item in enumerate(scored.retrieved.items[row])}
        for item, score in zip(ranked.tolist(), answer.scores, strict=False):
            if item in place:
                own = float(source[row, place[item]])
                largest = max(largest, abs(own - score) / max(1.0, abs(own)))
    if not largest <= _TOLERANCE:
        problem = f"a served score differs from the ranker's by {largest:.2e}"
        raise ServerError(product, problem)
    if not compared:
        problem = f"all of {len(answers)} lists were degraded: none can be compared"
        raise ServerError(product, problem)
    return ListTrial(lists=compared, largest_difference=largest)


def _distinct_times(
    past: Interactions, queries: Queries
) -> tuple[Interactions, Queries]:
    """
    Move events of a user at the same time apart by microseconds, in their order.

    The store orders them by their ids, and the table by their items.
    """
    place = np.arange(len(past))
    apart = past.time_us - place
    bounds = np.searchsorted(past.users, np.arange(len(past.user_ids) + 1))
    time_us = np.empty_like(past.time_us)
    last_us = np.zeros(len(past.user_ids), np.int64)
    for user in queries.users.tolist():
        own = slice(bounds[user], bounds[user + 1])
        time_us[own] = np.maximum.accumulate(apart[own]) + place[own]
        last_us[user] = time_us[own][-1]
    now_us = np.maximum(queries.now_us, last_us[queries.users] + 1)
    return (
        msgspec.structs.replace(past, time_us=time_us),
        msgspec.structs.replace(queries, now_us=now_us),
    )


def _events_of(
    past: Interactions, queries: Queries, most: int, *, moved_us: int
) -> list[Purchases]:
    """Return the newest events of each user, the oldest first."""
    from tollgate.store.store_events import Purchases

    bounds = np.searchsorted(past.users, np.arange(len(past.user_ids) + 1))
    items = hash_words(past.item_ids)
    words = hash_words([word.encode() for word in ACTIONS])
    found = []
    for user in queries.users.tolist():
        own = np.arange(max(bounds[user], bounds[user + 1] - most), bounds[user + 1])
        action = past.actions[own]
        found.append(
            Purchases(
                transaction_id=[b"event-%d" % one for one in own],
                entity_id=[[past.user_ids[user].encode()] * len(own)],
                event_time_us=past.time_us[own] + moved_us,
                cents=np.zeros(len(own), np.int64),
                fields={
                    ITEM: items[past.items[own]],
                    ACTION: np.where(action >= 0, words[action], MISSING),
                },
            )
        )
    return found


def _served_lists(
    url: str, product: str, past: Interactions, queries: Queries, *, moved_us: int
) -> list[Recommendations]:
    """
    Request the lists of users from a server.

    Raises:
        ServerError: A row was refused, or its answer is not the server's own.
    """
    from dataclasses import replace

    from tollgate_client import (
        RECOMMENDER_OPTIONS,
        FallbackItems,
        InvalidRequest,
        RecommendationRequest,
        Recommender,
    )

    options = replace(RECOMMENDER_OPTIONS, product=product, deadline_s=_TIMEOUT_S)
    fallback = FallbackItems(tuple(f"none-{at}" for at in range(LIST_ITEMS)))
    requests = [
        RecommendationRequest(f"trial-{row}", past.user_ids[user], int(now_us))
        for row, (user, now_us) in enumerate(
            zip(queries.users, queries.now_us + moved_us, strict=True)
        )
    ]
    answers: list[Recommendations] = []
    with Recommender([url], fallback=fallback, options=options) as client:
        for start in range(0, len(requests), MAX_BATCH_ROWS):
            part = requests[start : start + MAX_BATCH_ROWS]
            for outcome in client.recommend_rows(part, count=LIST_ITEMS):
                if isinstance(outcome, InvalidRequest):
                    raise ServerError(product, f"a row was refused: {outcome}")
                if outcome.source_of_list != "server":
                    problem = f"a list is not the server's: {outcome.why}"
                    raise ServerError(product, problem)
                answers.append(outcome)
    return answers


def _write_example(
    staged: Path, product: str, catalogue: Catalogue, interactions: Interactions
) -> None:
    """Write the script that requests items for the user with the most events."""
    counts = np.bincount(interactions.users)
    popular = catalogue.popular[0][:LIST_ITEMS]
    example = render(
        f"{_TEMPLATES}/ranking_ask.py.j2",
        {
            "product": product,
            "script": ASK_FILE,
            "user": interactions.user_ids[int(counts.argmax())],
            "time_us": int(interactions.time_us.max()) + 1,
            "popular": [catalogue.item_ids[one].decode() for one in popular],
        },
    )
    (staged / product / ASK_FILE).write_text(example, "utf-8")

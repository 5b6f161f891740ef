"""
Run late checks: checks of sealed segments that are too slow for the request path.

A sealed segment never changes. The findings are stored next to it, in a separate link
of the chain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.audit.chain.chain import Chain
from tollgate.audit.chain.links import Link, LinkContent
from tollgate.audit.releases.archive import ReleaseArchive
from tollgate.audit.releases.archived_release import ArchivedRelease, PolicyExcerpt
from tollgate.audit.releases.record_rows import (
    DECIDED,
    EVENT,
    FEATURE,
    PROBABILITY,
    SEQUENCE,
    WRITER,
    read_table,
)
from tollgate.audit.worker.pseudonyms import TRANSACTION
from tollgate.repository.models.artifact_file import Training
from tollgate.repository.releases.release_file import spec_hash_text
from tollgate.schema import REASON_SEPARATOR, Degraded

MOST_BEHIND_S = 86_400.0  # a later decision was not made live
MOST_AHEAD_S = 600.0
SUM_TOLERANCE = 1e-3  # of probabilities, which float32 rounds

CHECKS = {
    "range": "a feature is outside of what the model was trained on",
    "clock": "the purchase's time is far from the decision's",
    "score": "the score is not the probability it should be",
    "probabilities": "they are none, or do not add up to 1",
    "rules": "a rule or a reason code is unknown to the release's policy",
    "spec": "the features are not those of the release",
    "twin": "the transaction was decided before",
}

Bool = npt.NDArray[np.bool_]
Found = Iterator[tuple[str, Bool, Mapping[int, str]]]  # check, rows, details by row


def flag_new(chain: Chain, releases: ReleaseArchive) -> list[Link]:
    """
    Check the segments that were not checked yet; return one new link for each.

    Raises:
        JournalError: A segment cannot be read, or a link cannot be written.
    """
    done = {number for link in chain.alive("flags") for number in link.covers}
    links, before = [], None
    for link in chain.alive("segment"):
        if link.number not in done:
            links.append(_flag(chain, link, before=before, releases=releases))
        before = link
    return links


def sealed_flags(
    folder: Path, links: Sequence[Link], link: Link, *, values: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """
    Read check and detail of each finding in one record.

    Raises:
        JournalError: A table cannot be read.
    """
    found: list[tuple[str, str]] = []
    for one in links:
        if one.kind == "flags" and link.number in one.covers and one.table:
            table = read_table(folder, one).filter(
                (pl.col(WRITER) == values[WRITER])
                & (pl.col(SEQUENCE) == values[SEQUENCE])
            )
            found += table.select("check", "detail").rows()
    return found


def _flag(
    chain: Chain, link: Link, *, before: Link | None, releases: ReleaseArchive
) -> Link:
    table = read_table(chain.folder, link)
    known: set[str] = set()
    if before is not None:
        earlier = read_table(chain.folder, before, columns=[TRANSACTION])
        known = set(earlier[TRANSACTION].drop_nulls().to_list())
    parts = [
        _marked(own, check, rows, details)
        for (name,), own in table.group_by("release", maintain_order=True)
        for check, rows, details in _checks(own, releases.get(str(name)), known=known)
        if rows.any()
    ]
    counts: dict[str, int] = {}
    for part in parts:
        counts[part["check"][0]] = counts.get(part["check"][0], 0) + len(part)
    unknown = [
        name for name in table["release"].unique().sort() if releases.get(name) is None
    ]
    facts = {check: str(number) for check, number in sorted(counts.items())}
    if unknown:
        facts["releases_unknown"] = ", ".join(unknown)
    return chain.add(
        LinkContent(
            kind="flags",
            table=pl.concat(parts).sort(WRITER, SEQUENCE, "check") if parts else None,
            covers=[link.number],
            until_us=link.until_us,
            facts=facts,
        )
    )


def _marked(
    table: pl.DataFrame, check: str, rows: Bool, details: Mapping[int, str]
) -> pl.DataFrame:
    at = np.flatnonzero(rows)
    return table.select(WRITER, SEQUENCE)[at].with_columns(
        pl.lit(check).alias("check"),
        pl.Series(
            "detail",
            [details.get(row, CHECKS[check]) for row in at.tolist()],
            pl.String,
        ),
    )


def _checks(
    table: pl.DataFrame, archived: ArchivedRelease | None, *, known: set[str]
) -> Found:
    """Run every check for which the release's archived files suffice."""
    yield _clock(table)
    yield _probabilities(table, archived.policy if archived else None)
    yield _twins(table, known)
    if archived is None:
        return
    if archived.training is not None:
        yield _range(table, archived.training)
    if archived.policy is not None:
        yield _score(table, archived.policy)
        yield _rules(table, archived.policy)
    if archived.spec is not None:
        wanted = spec_hash_text(archived.spec.spec_hash)
        yield "spec", (table["spec"] != wanted).to_numpy(), {}


def _clock(table: pl.DataFrame) -> tuple[str, Bool, dict[int, str]]:
    gap = (table[EVENT] - table[DECIDED]).dt.total_microseconds()
    behind_s = -gap.to_numpy().astype(np.float64) / 1e6  # NaN without an event time
    rows = (behind_s > MOST_BEHIND_S) | (behind_s < -MOST_AHEAD_S)
    details = {
        row: f"the purchase was {abs(behind_s[row]):,.0f} s "
        + ("before" if behind_s[row] > 0 else "after")
        + " the decision"
        for row in np.flatnonzero(rows).tolist()
    }
    return "clock", rows, details


def _probabilities(
    table: pl.DataFrame, policy: PolicyExcerpt | None
) -> tuple[str, Bool, dict[int, str]]:
    names = [name for name in table.columns if name.startswith(PROBABILITY)]
    values = table.select(names).to_numpy()
    consented = table["consent"].to_numpy()
    reported = (table["degraded"].to_numpy() & int(Degraded.MODEL_OUTPUT)) != 0
    made = policy.scores() if policy is not None else None
    if made is not None and made.number:
        valid = np.isfinite(values).all(axis=1)
    else:
        with np.errstate(invalid="ignore"):
            valid = ((values >= 0) & (values <= 1)).all(axis=1)
            valid &= np.abs(values.sum(axis=1) - 1) <= SUM_TOLERANCE
    if policy is not None:
        # A row that a rule decides before the model has none, and no other row does.
        early = (table["rules"].to_numpy() & np.uint64(policy.early_rules)) != 0
        valid = np.where(early, np.isnan(values).all(axis=1), valid)
    return "probabilities", consented & ~reported & ~valid, {}


def _twins(table: pl.DataFrame, known: set[str]) -> tuple[str, Bool, dict[int, str]]:
    ids = table[TRANSACTION]
    by_time = table.select(TRANSACTION, DECIDED).with_row_index("row").sort(DECIDED)
    again = by_time.filter(
        ~pl.col(TRANSACTION).is_first_distinct() & pl.col(TRANSACTION).is_not_null()
    )
    rows = ids.is_in(list(known)).fill_null(False).to_numpy().copy()
    rows[again["row"].to_numpy()] = True
    return "twin", rows, {}


def _range(table: pl.DataFrame, training: Training) -> tuple[str, Bool, dict[int, str]]:
    rows = np.zeros(len(table), np.bool_)
    details: dict[int, str] = {}
    for name, known in training.features.items():
        if FEATURE + name not in table.columns or not known.quantiles:
            continue
        low, high = known.quantiles[0], known.quantiles[-1]
        column = table[FEATURE + name]
        values = column.to_numpy()
        missing = column.is_not_null().to_numpy() & np.isnan(values)
        wrong = missing & (known.missing == 0)
        if low is not None and high is not None:
            with np.errstate(invalid="ignore"):
                wrong |= (values < np.float32(low)) | (values > np.float32(high))
        for row in np.flatnonzero(wrong).tolist():
            text = f"{name} {values[row]:g} is not within {low:g} … {high:g}"
            details[row] = "; ".join(filter(None, (details.get(row), text)))
        rows |= wrong
    return "range", rows, details


def _score(
    table: pl.DataFrame, policy: PolicyExcerpt
) -> tuple[str, Bool, dict[int, str]]:
    made, score = policy.scores(), table["score"].to_numpy()
    names = [name for name in table.columns if name.startswith(PROBABILITY)]
    if made is None or len(names) != len(policy.labels):
        return "score", np.zeros(len(table), np.bool_), {}
    wanted = made.of(table.select(names).to_numpy()).astype(np.float32)
    # A policy may set no score because of the model's output, a degraded bit or a rule,
    # so NaN is correct.
    wrong = (score != wanted) & ~np.isnan(score)
    details = {
        row: f"score {score[row]:.9g}, of the probabilities {wanted[row]:.9g}"
        for row in np.flatnonzero(wrong).tolist()
    }
    return "score", wrong, details


def _rules(
    table: pl.DataFrame, policy: PolicyExcerpt
) -> tuple[str, Bool, dict[int, str]]:
    most = len(policy.rules)
    wrong = (table["rules"].to_numpy() >> np.uint64(most)) != 0 if most < 64 else None
    rows = np.zeros(len(table), np.bool_) if wrong is None else wrong
    details = dict.fromkeys(np.flatnonzero(rows).tolist(), "no rule has its number")
    # The library sets this code itself, whether or not a policy has a text for it.
    texts = {*policy.reasons, Degraded.ESSENTIAL_MISSING.name}
    for row, codes in enumerate(table["reason_codes"].to_list()):
        unknown = [one for one in codes.split(REASON_SEPARATOR) if one not in texts]
        if codes and unknown:
            rows[row] = True
            details[row] = f"no text for {', '.join(unknown)}"
    return "rules", rows, details

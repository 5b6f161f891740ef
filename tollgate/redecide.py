"""Decide past rows again with a changed policy, and report the differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.engine.batches import decide_in_batches, rows_of
from tollgate.engine.hysteresis_stage import decide_in_sequence
from tollgate.errors import ArgumentError, InputError
from tollgate.policy import Policy, PolicyDecisions, RowFacts, without_model
from tollgate.policy.conditions import Variable
from tollgate.schema import (
    MISSING,
    TRANSACTION,
    TRANSACTION_ID,
    Decision,
    Degraded,
    FieldForm,
    Outcomes,
    float_places,
    hash_words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Read past decisions from a journal's folder or from any Parquet file.
#
# docs/policy.md, "What would it have decided?", lists the columns.

_CENTS, _AMOUNT, _EVENT_TIME = "amount_cents", "amount", "event_time"
_FEATURE, _FIELD, _PROBABILITY, _LIST = "feature_", "field_", "probability_", "list_"
_SUBJECT = "subject_"
NO_RELEASES: Mapping[str, Outcomes] = MappingProxyType({})
# The policy sets this bit itself, from the probabilities.
_RECORDED_BITS = np.uint32(0xFFFFFFFF & ~int(Degraded.MODEL_OUTPUT))


class PastRows(msgspec.Struct, frozen=True, eq=False):
    """
    Rows of past decisions.

    Attributes:
        facts: Recorded facts of N rows; list_hits in the order of the policy's lists.
        decision: Recorded decisions; uint8 [N], None if unknown.
        left_out: Number of rows without the facts to decide them again.
        ids: By `transaction` and by the entity of each policy with hysteresis, the ids
            or pseudonyms of N rows; empty without such a policy.
    """

    facts: RowFacts
    decision: npt.NDArray[np.uint8] | None
    left_out: int
    ids: dict[str, npt.NDArray[np.object_]] = {}


def read_rows(
    path: Path,
    *,
    policies: Sequence[Policy],
    feature_names: Sequence[str],
    fields: Sequence[FieldForm],
    amount: bool = True,
    recorded: Mapping[str, Outcomes] = NO_RELEASES,
) -> PastRows:
    """
    Read the columns that some policies need to decide rows again.

    Args:
        path: A Parquet file, or a folder with some, such as a journal's.
        policies: Policies to read for; their lists must have the same names up to the
            shorter one.
        feature_names: Columns of `features`.
        amount: True if the product has amounts.
        recorded: Words of the recorded decisions, by release; the words of the first
            policy for the rows of other releases.

    Raises:
        InputError: A column is missing or has another type; the message names it.
    """
    frame = _frame(path)
    complete = _complete_rows(path, frame, amount=amount)
    reader = _Reader(path, complete, policies)
    degraded = reader.whole("degraded", needed=False).astype(np.uint32)
    facts = RowFacts(
        probabilities=reader.probabilities(),
        features=reader.features(feature_names),
        cents=reader.cents(),
        degraded=degraded & _RECORDED_BITS,
        event_time_us=reader.event_time_us(),
        list_hits=reader.list_hits(),
        fields=reader.fields(fields),
    )
    decision = reader.decision(recorded)
    ids = reader.ids()
    if "degraded" in complete.columns:
        known = ~_lacks_score(facts, policies, degraded=degraded)
        facts = rows_of(facts, known)
        decision = None if decision is None else decision[known]
        ids = {name: column[known] for name, column in ids.items()}
    return PastRows(facts, decision, len(frame) - len(facts.cents), ids)


def _lacks_score(
    facts: RowFacts, policies: Sequence[Policy], *, degraded: npt.NDArray[np.uint32]
) -> npt.NDArray[np.bool_]:
    """
    Return which rows a rule decided before the model, and a policy needs their score.

    Args:
        degraded: Recorded bits, with MODEL_OUTPUT where the model gave no score.
    """
    needed = np.any([~without_model(facts, policy=one) for one in policies], axis=0)
    unscored = np.isnan(facts.probabilities).any(axis=1)
    found: npt.NDArray[np.bool_] = (
        needed & unscored & ((degraded & ~_RECORDED_BITS) == 0)
    )
    return found


def _frame(path: Path) -> pl.DataFrame:
    """Read the file, or the files of a folder that hold decisions."""
    files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
    try:
        if path.is_dir():
            files = [one for one in files if _holds_decisions(one)]
            if not files:
                raise InputError(path, "holds no Parquet file with decisions")
        return pl.concat([pl.read_parquet(one) for one in files], how="diagonal")
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror or exc}") from exc
    except pl.exceptions.PolarsError as exc:
        problem = f"cannot be read: {str(exc).splitlines()[0]}"
        raise InputError(path, problem) from exc


def _holds_decisions(path: Path) -> bool:
    return {_CENTS, f"{_PROBABILITY}0"} <= pl.read_parquet_schema(path).keys()


def _complete_rows(path: Path, frame: pl.DataFrame, *, amount: bool) -> pl.DataFrame:
    """
    Leave out rows without consent: their personal columns, such as the amount, are
    null.
    """
    for name in (_CENTS, _AMOUNT):
        if name in frame.columns:
            return frame.filter(pl.col(name).is_not_null())
    if amount:
        raise InputError(path, "is missing", where=f"column {_CENTS} or {_AMOUNT}")
    return frame


class _Reader:
    def __init__(
        self, path: Path, frame: pl.DataFrame, policies: Sequence[Policy]
    ) -> None:
        self._path = path
        self._frame = frame
        self._policies = policies
        self._named = {one for policy in policies for one in policy.tables.named}

    def probabilities(self) -> npt.NDArray[np.float32]:
        """Read `probability_0` and so on, or `score` if that is enough."""
        labels = self._policies[0].labels
        for names in (range(len(labels)), labels):
            columns = [f"{_PROBABILITY}{one}" for one in names]
            if set(columns) <= set(self._frame.columns):
                return self._floats(columns)
        others = any(one.kind == "label" for one in self._named) or any(
            not one.score.plain or one.sum_within for one in self._policies
        )
        if others or len(labels) > 2 or "score" not in self._frame.columns:
            raise self._missing(f"{_PROBABILITY}0")
        score = self._floats(["score"])[:, 0]
        if len(labels) == 1:
            return score[:, None]
        column = self._policies[0].score.weights[0][0]
        both = np.stack([1 - score, score], axis=1)
        found: npt.NDArray[np.float32] = both if column == 1 else both[:, ::-1].copy()
        return found

    def features(self, names: Sequence[str]) -> npt.NDArray[np.float32]:
        """Read the features that conditions name; the others stay NaN."""
        found = np.full((len(self._frame), len(names)), np.nan, np.float32)
        for one in self._of_kind("feature"):
            column = self._first(f"{_FEATURE}{one.name}", one.name)
            found[:, one.column] = self._floats([column])[:, 0]
        return found

    def cents(self) -> npt.NDArray[np.int64]:
        """Read the amounts."""
        if _CENTS in self._frame.columns:
            return self.whole(_CENTS)
        if _AMOUNT not in self._frame.columns:
            return np.zeros(len(self._frame), np.int64)
        exact = self._column(_AMOUNT, lambda one: one.cast(pl.Float64).to_numpy())
        cents: npt.NDArray[np.int64] = np.rint(exact * 100).astype(np.int64)
        return cents

    def event_time_us(self) -> npt.NDArray[np.int64]:
        """Read event times; optional for policies that look at none."""
        needed = any(one.tables.timed or one.hysteresis for one in self._policies)
        return self.whole(_EVENT_TIME, needed=needed)

    def ids(self) -> dict[str, npt.NDArray[np.object_]]:
        """Read the ids that hysteresis needs, or their pseudonyms."""
        sections = [one.hysteresis for one in self._policies if one.hysteresis]
        if not sections:
            return {}
        owners = dict.fromkeys([TRANSACTION, *(one.entity for one in sections)])
        found: dict[str, npt.NDArray[np.object_]] = {}
        for owner in owners:
            plain = TRANSACTION_ID if owner == TRANSACTION else f"{owner}_id"
            sealed = TRANSACTION if owner == TRANSACTION else f"{_SUBJECT}{owner}"
            name = self._first(plain, sealed)
            texts = self._column(
                name, lambda one: one.cast(pl.String).fill_null("").to_list()
            )
            column = np.empty(len(texts), np.object_)
            column[:] = [text.encode() for text in texts]
            found[owner] = column
        return found

    def list_hits(self) -> npt.NDArray[np.uint32]:
        """Read the list bits, or one boolean column per list."""
        most = max((policy.lists for policy in self._policies), key=len)
        for policy in self._policies:
            for one, other in zip(policy.lists, most, strict=False):
                if one.name != other.name:
                    problem = f"is {one.name} in one policy and {other.name} in another"
                    raise InputError(self._path, problem, where="list of one bit")
        hits = self.whole("list_hits", needed=False).astype(np.uint32)
        for bit, listed in enumerate(most):
            column = f"{_LIST}{listed.name}"
            if column in self._frame.columns:
                hits |= self.whole(column).astype(np.uint32) << np.uint32(bit)
        return hits

    def fields(self, fields: Sequence[FieldForm]) -> dict[str, npt.NDArray[np.int64]]:
        """Read declared fields, as stored in the journal or as sent."""
        named = {one.name for one in self._of_kind("number", "category")}
        found: dict[str, npt.NDArray[np.int64]] = {}
        for one in fields:
            column = f"{_FIELD}{one.name}"
            if one.name not in named:
                continue
            if column in self._frame.columns:
                found[one.name] = self.whole(column, missing=MISSING)
            elif one.type == "category":
                words = self._column(
                    one.name, lambda c: c.cast(pl.String).fill_null("")
                )
                found[one.name] = hash_words([word.encode() for word in words])
            else:
                sent = self._column(one.name, lambda c: c.cast(pl.Float64).to_numpy())
                found[one.name] = _journal_number(sent, one.decimals)
        return found

    def decision(
        self, recorded: Mapping[str, Outcomes]
    ) -> npt.NDArray[np.uint8] | None:
        """Read the recorded decisions, given the words of some releases."""
        if "decision" not in self._frame.columns:
            return None
        words = self._column("decision", lambda one: one.cast(pl.String).to_list())
        releases: list[str] = [""] * len(words)
        if "release" in self._frame.columns:
            releases = self._column(
                "release", lambda one: one.cast(pl.String).fill_null("").to_list()
            )
        usual = self._policies[0].outcomes
        levels = {name: recorded.get(name, usual).levels for name in set(releases)}
        found = np.empty(len(words), np.uint8)
        for row, (word, name) in enumerate(zip(words, releases, strict=True)):
            level = levels[name].get(word)
            if level is None:
                known = recorded.get(name, usual).words
                problem = f"{word!r} is none of {', '.join(known)}"
                raise InputError(self._path, problem, where="column decision")
            found[row] = level
        return found

    def whole(
        self, name: str, *, needed: bool = True, missing: int = 0
    ) -> npt.NDArray[np.int64]:
        """Read integers; `missing` replaces null."""
        if name not in self._frame.columns and not needed:
            return np.full(len(self._frame), missing)
        found: npt.NDArray[np.int64] = self._column(
            name, lambda one: _whole(one).fill_null(missing).to_numpy()
        )
        return found

    def _floats(self, names: Sequence[str]) -> npt.NDArray[np.float32]:
        columns = [
            self._column(name, lambda one: one.cast(pl.Float32).to_numpy())
            for name in names
        ]
        return np.stack(columns, axis=1)

    def _column(self, name: str, take: Callable[[pl.Series], Any]) -> Any:
        if name not in self._frame.columns:
            raise self._missing(name)
        column = self._frame[name]
        try:
            return take(column)
        except pl.exceptions.PolarsError as exc:
            problem = f"is {column.dtype}, which does not fit"
            raise InputError(self._path, problem, where=f"column {name}") from exc

    def _first(self, *names: str) -> str:
        for name in names:
            if name in self._frame.columns:
                return name
        raise self._missing(names[0])

    def _of_kind(self, *kinds: str) -> list[Variable]:
        found = [one for one in self._named if one.kind in kinds]
        return sorted(found, key=lambda one: one.column)

    def _missing(self, name: str) -> InputError:
        return InputError(self._path, "is missing", where=f"column {name}")


def _journal_number(
    sent: npt.NDArray[np.float64], decimals: int | None
) -> npt.NDArray[np.int64]:
    """Convert numbers as sent into their form in the journal."""
    missing = np.isnan(sent)
    plain = np.where(missing, 0.0, sent)
    if decimals is None:
        whole = float_places(plain)
    else:
        whole = np.rint(plain * 10.0**decimals).astype(np.int64)
    return np.where(missing, MISSING, whole)


def _whole(column: pl.Series) -> pl.Series:
    """Cast to integers; times to µs since the epoch."""
    if isinstance(column.dtype, pl.Datetime):
        column = column.cast(pl.Datetime("us", column.dtype.time_zone))
    whole: pl.Series = column.cast(pl.Int64)
    return whole


_ROWS_AT_ONCE = 65_536
_LEVELS = len(Decision)

I64 = npt.NDArray[np.int64]


class SegmentDecisions(msgspec.Struct, frozen=True):
    """
    Decisions of some rows, before and after.

    Attributes:
        before, after: Number of rows by decision, the mildest first.
        cents_before, cents_after: Amounts of these rows, in cents.
    """

    name: str
    rows: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    cents_before: tuple[int, ...]
    cents_after: tuple[int, ...]


class RuleUse(msgspec.Struct, frozen=True):
    """
    How often a rule of the new policy matches, and the old rule of the same name did.

    Attributes:
        before: Rows that the old rule matched; None if the old policy has no such rule,
            or is unknown.
        after: Rows that the rule matches.
        otherwise: Number of these whose decision changes.
        cents: Amount of the rows that the rule matches, in cents.
    """

    name: str
    owner: str
    before: int | None
    after: int
    otherwise: int
    cents: int


class PolicyComparison(msgspec.Struct, frozen=True):
    """
    Decisions of past rows by a new policy.

    Attributes:
        rows: Number of rows that were decided again.
        left_out: Number of rows that could not be.
        matrix: Rows by decision before and after.
        cents: Amounts of these rows, in cents.
        segments: Decisions by segment of the new policy, OTHER first.
        rules: Use of each rule of the new policy.
        outcomes: Words of the new policy, in the order of the matrix.
    """

    rows: int
    left_out: int
    matrix: tuple[tuple[int, ...], ...]
    cents: tuple[tuple[int, ...], ...]
    segments: tuple[SegmentDecisions, ...]
    rules: tuple[RuleUse, ...]
    outcomes: tuple[str, str, str]

    @property
    def changed(self) -> int:
        """Return the number of rows whose decision changes."""
        same = sum(self.matrix[level][level] for level in range(_LEVELS))
        return self.rows - same

    def more(self, level: int) -> int:
        """Return how many more rows get a decision; below 0 for fewer."""
        after = sum(line[level] for line in self.matrix)
        return after - sum(self.matrix[level])

    def more_cents(self, level: int) -> int:
        """Return the amount of these rows, in cents."""
        after = sum(line[level] for line in self.cents)
        return after - sum(self.cents[level])


def compare_policies(
    past: PastRows, *, new: Policy, old: Policy | None = None
) -> PolicyComparison:
    """
    Decide past rows again.

    Args:
        past: Recorded facts of the rows.
        new: Policy that decides them now.
        old: Policy to compare with; None for the recorded decisions.

    Raises:
        InputError: There are no recorded decisions to compare with.
    """
    decided = _decide(past, new)
    after, segment, held = decided.decision, decided.segment, decided.rules
    if old is not None:
        decided = _decide(past, old)
        before, held_before = decided.decision, decided.rules
    elif past.decision is not None:
        before, held_before = past.decision, np.zeros(0, np.uint64)
    else:
        problem = "name the policy to compare with: the rows hold no decisions"
        raise ArgumentError("against", problem)
    cents = past.facts.cents
    places = {one.name: at for at, one in enumerate(old.rules)} if old else {}
    rules = []
    for at, rule in enumerate(new.rules):
        on = _bit(held, at)
        place = places.get(rule.name)
        rules.append(
            RuleUse(
                name=rule.name,
                owner=rule.owner,
                before=None if place is None else int(_bit(held_before, place).sum()),
                after=int(on.sum()),
                otherwise=int((on & (before != after)).sum()),
                cents=int(cents[on].sum()),
            )
        )
    return PolicyComparison(
        rows=len(cents),
        left_out=past.left_out,
        matrix=_matrix(before, after, np.ones(len(cents), np.int64)),
        cents=_matrix(before, after, cents),
        segments=tuple(
            _part(name, segment == at, before, after, cents)
            for at, name in enumerate(new.segments)
        ),
        rules=tuple(rules),
        outcomes=new.outcomes.words,
    )


def _decide(past: PastRows, policy: Policy) -> PolicyDecisions:
    """Decide rows; hysteresis begins with empty states, and follows the event times."""
    facts = past.facts
    decided = decide_in_batches(
        facts, policy=policy, batch_rows=_ROWS_AT_ONCE
    ).decisions
    if policy.hysteresis is None:
        return decided
    return decide_in_sequence(
        decided,
        settings=policy.hysteresis,
        machines=past.ids[policy.hysteresis.entity].tolist(),
        ids=past.ids[TRANSACTION].tolist(),
        time_us=facts.event_time_us,
    )


def _bit(held: npt.NDArray[np.uint64], at: int) -> npt.NDArray[np.bool_]:
    on: npt.NDArray[np.bool_] = (held >> np.uint64(at)) & np.uint64(1) != 0
    return on


def _matrix(
    before: npt.NDArray[np.uint8], after: npt.NDArray[np.uint8], worth: I64
) -> tuple[tuple[int, ...], ...]:
    sums = np.zeros(_LEVELS * _LEVELS, np.int64)
    np.add.at(sums, before.astype(np.intp) * _LEVELS + after, worth)
    return tuple(map(tuple, sums.reshape(_LEVELS, _LEVELS).tolist()))


def _part(
    name: str,
    rows: npt.NDArray[np.bool_],
    before: npt.NDArray[np.uint8],
    after: npt.NDArray[np.uint8],
    cents: I64,
) -> SegmentDecisions:
    ones = rows.astype(np.int64)
    return SegmentDecisions(
        name=name,
        rows=int(ones.sum()),
        before=_sums(before, ones),
        after=_sums(after, ones),
        cents_before=_sums(before, cents * ones),
        cents_after=_sums(after, cents * ones),
    )


def _sums(decision: npt.NDArray[np.uint8], worth: I64) -> tuple[int, ...]:
    return tuple(int(worth[decision == level].sum()) for level in range(_LEVELS))


# Draw the effect of a changed policy on past decisions.

_COLORS = ("tab:green", "tab:orange", "tab:red")


def draw(outcome: PolicyComparison, path: Path) -> None:
    """Write a PNG: changes of decisions, shares by segment, and use of rules."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tallest = max(len(outcome.segments) * 2, len(outcome.rules), 4)
    figure = Figure(figsize=(15, 2.5 + 0.4 * tallest), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    moves, segments, rules = figure.subplots(1, 3)
    _draw_moves(outcome, moves)
    _draw_segments(outcome, segments)
    _draw_rules(outcome, rules)
    figure.suptitle(
        f"{outcome.changed:,} of {outcome.rows:,} purchases decided differently; "
        f"{outcome.outcomes[-1]}: {outcome.more(Decision.DECLINE):+,} rows, "
        f"{outcome.more_cents(Decision.DECLINE) / 100:+,.2f} in money"
    )
    figure.savefig(path)


def _draw_moves(outcome: PolicyComparison, axes: Axes) -> None:
    shares = np.array(outcome.matrix) / max(outcome.rows, 1)
    axes.imshow(np.sqrt(shares), cmap="Blues", vmin=0, vmax=1)
    for before in range(_LEVELS):
        for after in range(_LEVELS):
            rows = outcome.matrix[before][after]
            money = outcome.cents[before][after] / 100
            text = f"{rows:,}\n{money:,.2f}" if rows else "0"
            dark = shares[before, after] > 0.4
            axes.text(
                *(after, before, text),
                ha="center",
                va="center",
                color="white" if dark else "black",
                weight="normal" if before == after else "bold",
            )
    axes.set_xticks(range(_LEVELS), outcome.outcomes)
    axes.set_yticks(range(_LEVELS), outcome.outcomes)
    axes.set(xlabel="after", ylabel="before", title="rows and their amounts")


def _draw_segments(outcome: PolicyComparison, axes: Axes) -> None:
    labels = []
    for place, part in enumerate(outcome.segments):
        for shift, counts, when in (
            (0, part.before, "before"),
            (1, part.after, "after"),
        ):
            left = 0.0
            for level, count in enumerate(counts):
                width = count / max(part.rows, 1)
                axes.barh(
                    place * 3 + shift,
                    width,
                    left=left,
                    color=_COLORS[level],
                    height=0.9,
                )
                left += width
            labels.append((place * 3 + shift, f"{part.name} {when}"))
    axes.set_yticks([at for at, _ in labels], [text for _, text in labels])
    axes.invert_yaxis()
    # Most decisions are the mildest one, so the axis shows its upper end.
    most = max(
        (1 - part.before[0] / max(part.rows, 1) for part in outcome.segments),
        default=0.0,
    )
    after = max(
        (1 - part.after[0] / max(part.rows, 1) for part in outcome.segments),
        default=0.0,
    )
    axes.set_xlim(max(0.0, 1 - 1.5 * max(most, after, 0.02)), 1)
    axes.set(xlabel="share of the segment's rows", title="by segment")
    for level, name in enumerate(outcome.outcomes):
        axes.barh(0, 0, color=_COLORS[level], label=name)
    _legend(axes)


def _draw_rules(outcome: PolicyComparison, axes: Axes) -> None:
    places = np.arange(len(outcome.rules))
    before = [rule.before or 0 for rule in outcome.rules]
    after = [rule.after for rule in outcome.rules]
    axes.barh(places - 0.2, before, height=0.4, color="tab:gray", label="before")
    axes.barh(places + 0.2, after, height=0.4, color="tab:blue", label="after")
    axes.set_yticks(places, [rule.name for rule in outcome.rules])
    axes.invert_yaxis()
    for place, rule in enumerate(outcome.rules):
        was = "" if rule.before is None else f"{rule.before:,} → "
        axes.text(
            max(rule.after, before[place]), place, f" {was}{rule.after:,}", va="center"
        )
    axes.set_xlim(0, 1.5 * max([1, *before, *after]))
    axes.set(xlabel="rows that match the rule", title="by rule")
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Put the legend below the axes, because no position inside is always free."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=3)

"""Train the model of a new product, or open one from a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import numpy.typing as npt

from tollgate.errors import ArgumentError, InputError
from tollgate.features.spec.spec_document import MAX_TEXT_BYTES, MAX_VOCABULARY
from tollgate.product.columns import Column, long_words_note
from tollgate.product.label import Label
from tollgate.product.plan import Field, Plan
from tollgate.product.table_reading import as_text, too_long
from tollgate.repository.models.artifact_file import Vocabulary, Words, same_word

if TYPE_CHECKING:
    import polars as pl

    from converters.model import Facts, TrainedModel
    from tollgate.features.spec.feature_spec import FeatureSpec


class MatchedFeatures(msgspec.Struct, frozen=True):
    """
    Features of a model as columns of a table.

    Attributes:
        fields: In the order of the features.
        categories: Feature -> its words, as the table writes them.
    """

    fields: tuple[Field, ...]
    categories: dict[int, Vocabulary]


def match_features(
    path: Path,
    facts: Facts,
    plan: Plan,
    *,
    columns: Sequence[str] = (),
    words: Path | None = None,
) -> MatchedFeatures:
    """
    Order the fields as the model has its features, with the model's words.

    Args:
        path: The model's file, for messages.
        facts: Known facts of the model.
        plan: Known facts of the table.
        columns: The table's columns in the order of the features, from the user.
        words: File with the words of columns, from the user.

    Raises:
        InputError: The order of the features or a column's words are not known, or a
            feature is no column of the table.
    """
    names = _names(path, facts, plan, columns=columns)
    fields = [_field(path, name, plan) for name in names]
    stated = {} if words is None else read_words(words)
    for name in stated:
        known = {one for field in fields for one in (field.name, field.column.source)}
        if name not in known:
            raise InputError(str(words), f"{name!r} is no feature of the model")
    own = _own_words(facts, fields)
    categories = {}
    for at, field in enumerate(fields):
        column = field.column
        user_words = stated.get(column.source, stated.get(field.name))
        if at in own:
            if user_words is not None:
                where = str(words)
                require_same_words(
                    user_words, own[at], origin=where, source=column.source
                )
            taken = _category(path, own[at], column, plan)
        elif user_words is not None:
            taken = _category(words or path, user_words, column, plan)
        elif column.kind == "number":
            continue
        else:
            raise _unknown_words(path, facts, column, at=at)
        fields[at] = Field(field.name, taken)
        categories[at] = Vocabulary(codes=True, known=taken.words)
    return MatchedFeatures(tuple(fields), categories)


def _names(
    path: Path, facts: Facts, plan: Plan, *, columns: Sequence[str]
) -> tuple[str, ...]:
    """Return the features' names, from the model's file or else from the user."""
    if facts.names is None and not columns:
        example = ",".join(one.column.source for one in plan.fields[:3])
        problem = (
            f"{path} has {facts.columns} features without names: name the table's "
            "columns in the order that it was trained on, such as "
            f"{example}{',…' if facts.columns > 3 else ''}"
        )
        raise ArgumentError("columns", problem)
    if not columns:
        return facts.names or ()
    if len(columns) != facts.columns:
        problem = f"names {len(columns)} columns, {path} has {facts.columns} features"
        raise ArgumentError("columns", problem)
    if facts.names is not None:
        for at, (own, stated_name) in enumerate(zip(facts.names, columns, strict=True)):
            if own != stated_name:
                problem = (
                    f"feature {at} of {path} is {own!r}, not {stated_name!r}: state no "
                    "columns, the file names its features"
                )
                raise ArgumentError("columns", problem)
    for name in columns:
        if list(columns).count(name) > 1:
            raise ArgumentError("columns", f"names {name!r} twice")
    return tuple(columns)


def _field(path: Path, name: str, plan: Plan) -> Field:
    """Find a feature's column, also if it was left out only because of its values."""
    known = {one.column.source: one for one in plan.fields}
    for one in plan.fields:
        known.setdefault(one.name, one)
    if name in known:
        return known[name]
    left = {one.source: one for one in plan.excluded}
    if name in left and left[name].by_values:
        column = plan.frame[name]
        return Field(plan.name_of(name), Column(name, "category", values=column))
    why = f" ({left[name].reason})" if name in left else ""
    problem = f"was trained with {name!r}, which the product has not{why}"
    raise InputError(path, problem)


def _own_words(facts: Facts, fields: Sequence[Field]) -> Mapping[int, Words]:
    """
    Return the words of the model's file, by feature.

    If the file does not assign its words to columns, the table shows which have words.
    """
    from converters.sources.described import placed

    texts = [at for at, one in enumerate(fields) if one.column.kind == "category"]
    found = placed(facts, texts).categories
    return {
        at: one.known
        for at, one in found.items()
        if one.codes or any(isinstance(word, str) for word in one.known)
    }


def _category(origin: Path, known: Words, column: Column, plan: Plan) -> Column:
    return category_column(plan.frame[column.source], known, origin=str(origin))


def _unknown_words(
    path: Path, facts: Facts, column: Column, *, at: int
) -> ArgumentError:
    """Build the error for a column of words that the model's file does not list."""
    why = "was trained on numbers there, and its file has no words"
    if facts.unplaced:
        why = "keeps words of columns, and its file does not say of which"
    elif at in facts.categories:
        why = "was trained on codes there, and its file has no words that can be read"
    example = ", ".join(f'"{one}"' for one in column.words[:2] or ("a", "b"))
    problem = (
        f"{path} {why}: list them in a file in the order of their codes, such as "
        f'{{"{column.source}": [{example}, …]}}'
    )
    return ArgumentError("words", problem, where=column.source)


F32 = npt.NDArray[np.float32]
Kind = Literal["auto", "boosting", "deep-boosting", "logistic"]


class ExternalModel(msgspec.Struct, frozen=True, eq=False):
    """
    A model that was trained outside of Tollgate, matched to the table.

    Attributes:
        model: The model, its features under the product's names.
        fields: The product's fields in the order of its features.
        takes_nan: True if it scores a row with missing numbers.
        encoded: Fields that the model's own encoder reads; it knows codes below 0.
    """

    model: TrainedModel
    fields: tuple[Field, ...]
    takes_nan: bool
    encoded: frozenset[str] = frozenset()

    def classes_of(self, label: npt.NDArray[np.int8]) -> tuple[object, ...]:
        """Convert outcomes to the model's classes."""
        classes = self.model.facts.classes
        return tuple(classes[one] for one in label.tolist())


class ModelFile(msgspec.Struct, frozen=True):
    """
    A model's file, with the user's options for it.

    Attributes:
        path: The file.
        trust_pickle: True to load a pickle, which runs the code in it.
        columns: The table's columns in the order of its features; empty where the file
            names them.
        python: Python of the environment that trained it; None for our own.
        words: File with the words of its columns, where the model's file has none.
    """

    path: Path
    trust_pickle: bool = False
    columns: tuple[str, ...] = ()
    python: Path | None = None
    words: Path | None = None


@contextmanager
def open_external_model(model_file: ModelFile, plan: Plan) -> Iterator[ExternalModel]:
    """
    Open a model's file and match its features to the table's columns.

    Raises:
        InputError: It cannot be read, does not have two classes, a feature is no
            column, or the order of its features or their words are not known.
        ConversionError: It would not convert faithfully.
    """
    from converters.sources.described import DescribedModel
    from converters.sources.opening import open_source

    choices, path = plan.choices, model_file.path
    if choices.entities or choices.time or choices.amount:
        problem = (
            "takes the table's columns alone; for entities, times or amounts create "
            "the product first, then train on `tollgate features build` and publish"
        )
        raise ArgumentError("model", problem)
    count = len(model_file.columns or plan.fields)
    with open_source(
        path,
        trust_pickle=model_file.trust_pickle,
        columns=count,
        python=model_file.python,
    ) as model:
        _require_outcome(path, model.facts, plan.label)
        facts = model.facts
        found = match_features(
            path, facts, plan, columns=model_file.columns, words=model_file.words
        )
        fields = found.fields
        own = msgspec.structs.replace(
            facts,
            names=tuple(one.name for one in fields),
            categories={**facts.categories, **found.categories},
            unplaced=(),
        )
        empty = np.full((1, len(fields)), np.nan, np.float32)
        encoders = facts.categories if facts.framework == "scikit-learn" else ()
        yield ExternalModel(
            model=DescribedModel(model, own),
            fields=fields,
            takes_nan=bool(np.isfinite(model.predict(empty)).all()),
            encoded=frozenset(fields[at].name for at in encoders),
        )


def _require_outcome(path: Path, facts: Facts, label: Label) -> None:
    """Check that the second of two classes is the outcome; 0 and 1 fit any two."""
    classes = [str(one) for one in facts.classes]
    if facts.number or facts.anomaly is not None:
        kind = "a number" if facts.number else "the raw score of an outlier detector"
        problem = (
            f"answers {kind}, and a new product has a model of two classes: train a "
            "classifier, or convert this model for a product that exists"
        )
        raise InputError(path, problem)
    if len(classes) != 2:
        raise InputError(path, f"has {len(classes)} classes, not two: {classes[:8]}")
    if classes[1] == label.positive or classes == ["0", "1"]:
        return
    problem = f"has the classes {classes}, and scores the second one"
    if classes[1] in label.others:
        problem = f"{path} {problem}: name {classes[1]!r} instead"
        raise ArgumentError("positive", problem)
    raise InputError(path, problem)


def train_model(
    features: F32,
    label: npt.NDArray[np.int8],
    *,
    spec: FeatureSpec,
    kind: Kind,
    seed: int,
    time_us: npt.NDArray[np.int64] | None = None,
    report: Callable[[str, str], None] = lambda title, text: None,
) -> tuple[TrainedModel, Kind]:
    """
    Train the first model; with `auto`, the kind that ranks these rows best.

    In very small tables boosting finds no split and would give every row the same
    score; then a regression is trained.

    Returns:
        The model, and its kind.

    Raises:
        InputError: The rows cannot be trained on, or say nothing of the outcome.
    """
    from converters.baseline import KINDS, train_baseline
    from converters.baseline import Kind as BaselineKind
    from converters.comparison import compare_kinds, comparison_text
    from converters.sources.worker import model_of

    kinds = KINDS[KINDS.index(kind) :] if kind != "auto" else KINDS
    if kind == "auto":
        when = np.zeros(len(label), np.int64) if time_us is None else time_us
        found = compare_kinds(features, label, spec=spec, time_us=when, seed=seed)
        if found:
            report(
                "kinds compared", f"AUC of {comparison_text(found)}: the first is taken"
            )
            kinds = msgspec.convert(
                [one.name for one in found], tuple[BaselineKind, ...]
            )
    for one in kinds:
        pipeline = train_baseline(features, label, spec=spec, seed=seed, kind=one)
        if np.ptp(pipeline.predict_proba(features)[:, 1]) > 0:
            return model_of(pipeline), one
    problem = "every row gets the same score: the columns say nothing of the outcome"
    raise InputError(spec.product, problem)


_LAST = 0.2  # share of the rows, the newest, to judge windows on
_WORTH = 0.5  # standard errors of an AUC that windows must add
_JUDGED_ROWS = 200_000  # the newest of them; more take longer, and change little


class WindowGain(msgspec.Struct, frozen=True):
    """
    The benefit of an entity's windows of numbers.

    Attributes:
        without: AUC of a model without them.
        with_them: AUC of a model with them.
        useful: True if they add enough to keep them.
    """

    without: float
    with_them: float
    useful: bool


def number_columns(spec: FeatureSpec, entity: int) -> list[int]:
    """
    Return the features that are windows of numbers of an entity.

    These are all windows of fields, and the maximum of the amount.
    """
    return [
        at
        for at, one in enumerate(spec.features)
        if one.entity == entity and (one.of is not None or one.aggregate == "max")
    ]


def judge_windows(
    features: F32,
    label: npt.NDArray[np.int8],
    *,
    spec: FeatureSpec,
    kind: Kind,
    time_us: npt.NDArray[np.int64],
) -> list[WindowGain | None]:
    """
    Judge the windows of numbers of each entity, one entity after the other.

    A model of the earlier rows ranks the last fifth with them and without; those of
    entities that were found useful before are included in both.

    Args:
        features: Features of the training rows; float32 [N, F].
        label: 0 or 1; int8 [N].
        spec: The product's features.
        kind: Kind of model; boosting for `auto`.
        time_us: Times of the rows, µs; int64 [N].

    Returns:
        Per entity; None without such windows, or without both outcomes in each part.
    """
    of_entity = [number_columns(spec, at) for at in range(len(spec.entities))]
    order = np.argsort(time_us, kind="stable")[-_JUDGED_ROWS:]
    cut = len(order) - round(_LAST * len(order))
    parts = order[:cut], order[cut:]
    if not any(of_entity) or any(len(np.unique(label[one])) < 2 for one in parts):
        return [None] * len(of_entity)
    rows, ones = len(order) - cut, int(label[parts[1]].sum())
    chance = math.sqrt((rows + 1) / (12 * ones * (rows - ones)))
    numbers = {column for columns in of_entity for column in columns}
    used = [at for at in range(len(spec.features)) if at not in numbers]
    best = _last_auc(features, label, spec=spec, kind=kind, columns=used, parts=parts)
    found: list[WindowGain | None] = []
    for columns in of_entity:
        if not columns:
            found.append(None)
            continue
        more = sorted((*used, *columns))
        auc = _last_auc(
            features, label, spec=spec, kind=kind, columns=more, parts=parts
        )
        gain = WindowGain(best, auc, useful=auc - best > _WORTH * chance)
        found.append(gain)
        if gain.useful:
            used, best = more, auc
    return found


def _last_auc(
    features: F32,
    label: npt.NDArray[np.int8],
    *,
    spec: FeatureSpec,
    kind: Kind,
    columns: Sequence[int],
    parts: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
) -> float:
    """Train on some features of the first rows; return the AUC on the last ones."""
    from converters.baseline import train_baseline
    from tollgate.evaluation import roc_auc

    if not columns:
        return 0.5
    learn, last = parts
    chosen = tuple(spec.features[at] for at in columns)
    model = train_baseline(
        features[learn][:, columns],
        label[learn],
        spec=msgspec.structs.replace(spec, features=chosen),
        seed=0,
        kind="boosting" if kind == "auto" else kind,
    )
    return roc_auc(label[last], model.predict_proba(features[last][:, columns])[:, 1])


def missing_of(plan: Plan, external: ExternalModel | None) -> dict[str, float]:
    """
    Return the substitute for a missing value, by field.

    NaN leaves a missing number to the model; otherwise it is the median. A category
    that is missing or unseen has codes below 0, which our own encoders know; tree
    libraries get NaN instead.
    """
    found = {}
    for one in plan.fields if external is None else external.fields:
        if one.column.kind == "category":
            trees = external is not None and external.takes_nan
            to_model = (
                trees and external is not None and one.name not in external.encoded
            )
            found[one.name] = math.nan if to_model else 0.0
            continue
        middle = one.column.values.median()
        plain = middle if isinstance(middle, float) else 0.0
        if one.column.decimals is not None:
            plain = round(plain, one.column.decimals)
        to_model = external is None or external.takes_nan
        found[one.name] = math.nan if to_model else plain
    return found


def read_words(path: Path) -> dict[str, tuple[str, ...]]:
    """
    Read the words of a model's columns, in the order of their codes.

    Args:
        path: YAML or JSON: column -> list of words.

    Raises:
        InputError: It cannot be read, or is something else.
    """
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=dict[str, tuple[str, ...]])
    except OSError as error:
        raise InputError(path, f"cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        problem = f"is no mapping of columns to lists of words in quotes: {error}"
        raise InputError(path, " ".join(problem.split())) from error


def category_column(
    column: pl.Series, known: Words, *, origin: str, fewest: int = 1
) -> Column:
    """
    Convert a column to a category with the words of a model, in the model's order.

    Args:
        column: Column as the table has it: texts, numbers or truth values.
        known: The model's categories; a number stands for each text of that number.
        origin: The file with the model or its words, for messages.
        fewest: Smallest number of rows that must have one of the words.

    Raises:
        InputError: A word cannot be sent in a request, they are too many, or the table
            has none of them.
    """
    source = column.name
    if len(known) > MAX_VOCABULARY:
        problem = (
            f"has {len(known):,} words, a vocabulary has at most {MAX_VOCABULARY:,}: "
            "train the model on fewer"
        )
        raise InputError(origin, problem, where=source)
    texts = as_text(column)
    found = texts.drop_nulls().unique(maintain_order=True).to_list()
    words = _table_words(known, found, origin=origin, source=source)
    rows = texts.is_in(list(words)).sum()
    if rows < fewest:
        shown = ", ".join(repr(one) for one in words[:3])
        problem = (
            f"its words are {shown}, …, and the table has none of them, but "
            f"{found[0] if found else '':.40}…: is it another column?"
        )
        raise InputError(origin, problem, where=source)
    unseen = len(texts) - texts.null_count() - rows
    notes = ["the model's words"]
    if unseen:
        notes.append(f"{unseen:,} rows have others, which count as missing")
    if far := int(too_long(column).sum()):
        notes.append(long_words_note(far))
    return Column(
        source=source,
        kind="category",
        values=texts,
        words=words,
        notes=(", ".join(notes),),
    )


def _table_words(
    known: Words, found: list[str], *, origin: str, source: str
) -> tuple[str, ...]:
    """Write each category as the table does; one that is not in the table as text."""
    in_table: set[str | float] = set(found)
    texts: dict[str | float, list[str]] = {}
    for text in found:
        for key in _keys(text):
            texts.setdefault(key, []).append(text)
    words: list[str] = []
    for one in known:
        spellings = [str(one)] if one in in_table else texts.get(one, [])
        if len(spellings) > 1:
            problem = f"the table writes the model's {one!r} as {spellings[0]!r} and "
            problem += f"{spellings[1]!r}: use one spelling"
            raise InputError(origin, problem, where=source)
        words.append(spellings[0] if spellings else str(one))
    seen: set[str] = set()
    for word in words:
        if not word.strip() or len(word.encode()) > MAX_TEXT_BYTES:
            problem = (
                f"the model's word {word!r:.60} is not 1 to {MAX_TEXT_BYTES} bytes "
                "long, blanks apart, and no request can have it: rename it and train "
                "again"
            )
            raise InputError(origin, problem, where=source)
        if word in seen:
            raise InputError(origin, f"has the word {word!r:.60} twice", where=source)
        seen.add(word)
    return tuple(words)


def _keys(text: str) -> list[str | float]:
    """List the categories that a text may stand for, besides itself."""
    if text.lower() in ("true", "false"):
        return [text.lower()]
    try:
        return [float(text)]
    except ValueError:
        return []


def require_same_words(
    stated: tuple[str, ...], known: Words, *, origin: str, source: str
) -> None:
    """
    Check that the user's words equal those of the model's own file.

    Raises:
        InputError: They differ; names the first difference.
    """
    for place in range(max(len(stated), len(known))):
        one = stated[place] if place < len(stated) else None
        own = known[place] if place < len(known) else None
        if one is None or own is None or not same_word(own, one):
            problem = (
                f"word {place} is {'absent' if one is None else repr(one)} here and "
                f"{'absent' if own is None else repr(own)} in the model's file: leave "
                "the column out of the file, the model's words count"
            )
            raise InputError(origin, problem, where=source)

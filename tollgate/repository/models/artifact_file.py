"""
Define artifact.json, the record of a converted model, and read it.

Converters write a record as a whole. Each reader decodes the fields that it needs, in
the types of this schema, and skips the others: a record of another version of Tollgate
may have more fields, or fewer.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from tollgate.errors import ParityError, RepositoryError
from tollgate.features.spec.spec_definition import Feature, FeatureSpec
from tollgate.repository.field_types import Name, Sha256, SpecHash, UtcTime
from tollgate.repository.hashes import SHORT_DIGITS, hash_file
from tollgate.repository.models.targets import OURS
from tollgate.schema import ARTIFACT_FILE

Parameter = str | int | float | bool
Words = tuple[str | int | float, ...]


class Vocabulary(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The categories that a model knows of one feature.

    Attributes:
        codes: The feature holds the position of a category in `known`; otherwise it
            holds the category itself, a number.
        known: The categories; without `codes`, of a boosted model, those that some
            split tests.
    """

    codes: bool
    known: Words


def same_word(known: str | int | float, text: str) -> bool:
    """Return whether a text names a category: 10 and 10.0 are both the number 10."""
    if isinstance(known, str):
        truths = ("true", "false")
        return text == known or (known in truths and text.lower() == known)
    try:
        return float(text) == known
    except ValueError:
        return False


def word_differences(
    categories: Mapping[str, Vocabulary], spec: FeatureSpec
) -> Iterator[tuple[str, str]]:
    """
    Find where a model's categories differ from those of its features.yaml.

    Args:
        categories: Feature -> the categories that the model knows of it.

    Yields:
        The key in artifact.json, and the problem with what to do.
    """
    for feature in spec.features:
        known = categories.get(feature.name)
        if known is None:
            continue
        problem = _difference(known, feature, spec)
        if problem:
            yield f"categories.{feature.name}", problem


def _difference(known: Vocabulary, feature: Feature, spec: FeatureSpec) -> str:
    coded = known.codes or any(isinstance(one, str) for one in known.known)
    if feature.category is None:
        if not coded:
            return ""
        shown = ", ".join(repr(one) for one in known.known[:3])
        return (
            f"the model knows {len(known.known)} words of it ({shown}, …), features."
            "yaml hands it a number: declare a field `type: category` with the model's "
            "words as its vocabulary"
        )
    words = spec.field(feature.category).vocabulary
    if not coded:
        most = max((one for one in known.known if not isinstance(one, str)), default=-1)
        if most < len(words):
            return ""
        return (
            f"the model tests code {most:g}, and the vocabulary of field "
            f"{feature.category!r} in features.yaml ends at code {len(words) - 1}: "
            "list all words that it was trained with, in the order of their codes"
        )
    for place in range(max(len(words), len(known.known))):
        ours = words[place] if place < len(words) else None
        model = known.known[place] if place < len(known.known) else None
        if ours is not None and model is not None and same_word(model, ours):
            continue
        return (
            f"word {place} is {_shown(model)} in artifact.json and {_shown(ours)} in "
            f"the vocabulary of field {feature.category!r} in features.yaml: list the "
            f"model's {len(known.known)} words there in the model's order, or train "
            "the model on these features"
        )
    return ""


def _shown(word: str | int | float | None) -> str:
    return "absent" if word is None else f"{word!r:.60}"


# Record the evidence for a converted model: its source, raw rows, its author.


class RowsFile(msgspec.Struct, frozen=True):
    """A file of rows: its name, its SHA-256 and how many rows were taken."""

    name: str
    sha256: Sha256
    rows: int

    def __str__(self) -> str:
        """Describe it for a person."""
        return f"{self.rows:,} rows of {self.name} (sha256 {self.sha256[:12]}…)"


class Apart(msgspec.Struct, frozen=True):
    """
    The difference of two answers to the same rows.

    Attributes:
        rows: Number of rows with a difference above the tolerance.
        first: The first of these rows, from 1; 0 for none.
        wanted, found: Its probability by the source or the author, and as converted.
    """

    max_delta: float
    rows: int = 0
    first: int = 0
    wanted: float = 0.0
    found: float = 0.0

    def __str__(self) -> str:
        """Describe the difference in one line."""
        text = f"largest difference {self.max_delta:.2g}"
        if self.rows:
            text += (
                f"; {self.rows:,} rows differ by more, the first is row {self.first}: "
                f"{self.wanted:.9g} became {self.found:.9g}"
            )
        return text


class Oracle(msgspec.Struct, frozen=True):
    """
    The evidence that a proof is based on.

    Attributes:
        source: Library that computed the source's answers, with its version.
        tolerance: Maximum difference of a probability.
        raw: The rows that the source answered, as in their file, in float64; None
            without a file of rows.
        raw_apart: Difference of its answers from those of the converted model, which
            got the same rows in the form in which they are sent when served.
        expected: The author's file of answers; None if there is none.
        expected_apart: Difference of these from the converted model's.
        shared_reader: True if the library that answered also read the file for the
            conversion, and nothing else confirms how the file is to be read.
    """

    source: str
    tolerance: float
    raw: RowsFile | None = None
    raw_apart: Apart | None = None
    expected: RowsFile | None = None
    expected_apart: Apart | None = None
    shared_reader: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """Describe each comparison that was made, in one line each."""
        said = []
        if self.expected is not None and self.expected_apart is not None:
            said.append(
                f"proven against the author's answers, {self.expected}: "
                f"{self.expected_apart} (allowed {self.tolerance:g})"
            )
        if self.raw_apart is None:
            said.append(f"proven against {self.source}, on no raw rows of a file")
        else:
            where = "raw rows" if self.raw is None else f"raw {self.raw}"
            said.append(f"proven against {self.source}, {where}: {self.raw_apart}")
        return tuple(said)

    @property
    def warnings(self) -> tuple[str, ...]:
        """List what the proof does not cover, in one sentence each."""
        said = []
        if self.raw_apart is not None and self.raw_apart.rows:
            said.append(
                "rows are rounded on their way to the model, and the source answers "
                f"{self.raw_apart.rows:,} of them otherwise as their file has them"
            )
        if self.shared_reader:
            said.append(
                f"{self.source} read the file for the conversion and gave the answers "
                "it was compared with: were the file misread, both would agree; the "
                "author's own answers would show it (tollgate convert --expected)"
            )
        return tuple(said)


TOLERANCE = 1e-5  # of a probability; float32 sums of 100 trees stay below 1e-6


class Disagreement(msgspec.Struct, frozen=True):
    """
    One probe row on which the two models differ most.

    Attributes:
        row: Its position among the probes.
        kind: Kind of probe that it is.
        source: Probability of one class by the source.
        converted: The same by the converted model.
        label: Position of that class.
    """

    row: int
    kind: str
    source: float
    converted: float
    label: int = 1


class OrderReport(msgspec.Struct, frozen=True):
    """
    The differences between the lists of a converted ranker and those of its source.

    A list is ordered by score, the highest first, and equal scores by position.

    Attributes:
        lists: Number of lists compared.
        candidates: Candidates of each; zeros fill the last list, as they do when
            served.
        top: Number of first places compared.
        tolerance: Scores that differ by less, for their size, may change places.
        moved: Places with another candidate than the source's, for whatever reason.
        wrong: Places before which a candidate is missing whose score by the source is
            higher by more than the tolerance; none is allowed.
        batch_delta: Largest difference of a relevance between a list alone and in a
            batch, and between a list and its rows alone, for its size.
    """

    lists: int
    candidates: int
    top: int
    tolerance: float
    moved: int
    wrong: int
    batch_delta: float

    @property
    def passed(self) -> bool:
        """Return whether the order is the source's, and no list depends on others."""
        return self.wrong == 0 and self.batch_delta <= self.tolerance

    def __str__(self) -> str:
        """Describe the comparison in one line."""
        return (
            f"the first {self.top} of {self.lists:,} lists of {self.candidates}: "
            f"{self.wrong} places are wrong, {self.moved} moved within the tolerance"
        )


class ParityReport(msgspec.Struct, frozen=True):
    """
    The differences between a converted model and its source.

    Differences are of probabilities, of each row's class that differs most.

    Args:
        runtime: Runtime of the converted model, with its version.
        rows: Number of probe rows compared.
        max_delta: Largest |source - converted|; infinite when a probability is NaN or
            outside [0, 1], or a number is NaN.
        flips: (row, class, threshold) triples on different sides of a threshold; with
            two classes P(1) counts, with more each of them. The source's probability
            counts as the float32 nearest to it, because a score is a float32.
        batch_delta: Largest difference of one row's probability alone, in a batch of 32
            and in a shuffled batch; 0 when the other rows do not matter.
        thresholds: Decision thresholds that flips were counted at.
        tolerance: Maximum of max_delta and batch_delta.
        worst: The rows that differ most, worst first.
        mean_delta: Mean |source - converted|; None in records older than this field.
        quantiles: Quantiles of |source - converted|, by level as text; None as for
            mean_delta.
        unanswered: Number of probe rows that the source itself refuses; not compared.
        kinds: Rows compared per kind of probe.
        alone: Number of rows that were also sent alone; the others were sent in batches
            only. None in older records, where all of them were.
        unit: Usual size of a number, where the answer is one: differences are then
            relative to the larger of the number and this. None for probabilities.
        order: Comparison of lists; None for a model that does not rank.
    """

    runtime: str
    rows: int
    max_delta: float
    flips: int
    batch_delta: float
    thresholds: tuple[float, ...]
    tolerance: float
    worst: tuple[Disagreement, ...]
    mean_delta: float | None = None
    quantiles: dict[str, float] = {}
    unanswered: int = 0
    kinds: dict[str, int] = {}
    alone: int | None = None
    unit: float | None = None
    order: OrderReport | None = None

    @property
    def would_pass(self) -> float:
        """The smallest tolerance that would pass; flips fail at any."""
        return max(self.max_delta, self.batch_delta)

    @property
    def passed(self) -> bool:
        """
        Return whether nothing flips, every difference is within tolerance, and a
        ranker's lists are those of its source.
        """
        ordered = self.order is None or self.order.passed
        return ordered and self.flips == 0 and self.would_pass <= self.tolerance

    @property
    def figures(self) -> str:
        """The figures of the report, in one line."""
        first = self.worst[0]
        what = "probabilities" if self.unit is None else "numbers, for their size,"
        return (
            f"{self.runtime}, {self.rows} rows: {what} differ by up to "
            f"{self.max_delta:.3g}, alone and batched by up to {self.batch_delta:.3g} "
            f"(allowed {self.tolerance:.3g}), {self.flips} decisions flip; worst is "
            f"{first.kind} row {first.row}: "
            f"{first.source:.9g} became {first.converted:.9g}"
            + ("" if self.order is None else f"; {self.order}")
        )

    def check(self) -> None:
        """Raise ParityError with the figures unless the models agree."""
        if not self.passed:
            raise ParityError(
                f"the converted model does not answer as its source ({self.figures})"
            )


ALLOWED_FLIPS = 0.001  # share of the rows
ALLOWED_AUC_LOSS = 0.001
ALLOWED_AP_LOSS = 0.005  # the rarer frauds are, the more this says than the AUC


class Figures(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The measured figures of one model.

    Attributes:
        auc: Area under the ROC curve; None without labels or with more classes than 2.
        average_precision: Average precision; None in the same cases as `auc`.
        us_per_row: Rows of a batch -> fastest time per row, µs, on one thread.
    """

    auc: float | None
    average_precision: float | None
    us_per_row: dict[int, float]
    size_bytes: int


class Trade(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    One model before and after it was made smaller.

    Attributes:
        kind: `prune`, `quantize` or `distill`.
        rows: Number of rows on which both were judged.
        flips: Number of rows with another decision, sent alone or in batches of 32.
        max_delta: Largest |Δp| of a row in batches of 32; not finite if one of the two
            answers no probability, which no gate lets pass.
        before: Figures of the first.
        after: Figures of the second.
        flagged: Number of rows at or above the lowest threshold by the first model:
            most rows that can flip are among them, however many rows there are.
        batch_delta: Largest |Δp| of a row of the second alone and in a batch; if it is
            not 0, a score depends on the other rows and cannot be replayed alone.
    """

    kind: str
    detail: str
    rows: int
    flips: int
    max_delta: float
    before: Figures
    after: Figures
    flagged: int = 0
    batch_delta: float = 0.0


class Gate(msgspec.Struct, frozen=True):
    """
    Limits of the quality that a smaller model may lose.

    Attributes:
        flips: Share of the rows that may get another decision.
    """

    flips: float = ALLOWED_FLIPS
    auc_loss: float = ALLOWED_AUC_LOSS
    ap_loss: float = ALLOWED_AP_LOSS

    def problems(self, trade: Trade) -> list[str]:
        """List the figures of a trade that exceed a limit; empty if there are none."""
        found = []
        if not (math.isfinite(trade.max_delta) and math.isfinite(trade.batch_delta)):
            found.append("some answers are no probabilities: NaN, or not within 0 to 1")
        if trade.flips > self.flips * trade.rows:
            found.append(
                f"{trade.flips:,} of {trade.rows:,} decisions change, "
                f"{trade.flips / trade.rows:.2%} where {self.flips:.2%} may"
            )
        before, after = trade.before, trade.after
        for name, first, second, allowed in (
            ("AUC", before.auc, after.auc, self.auc_loss),
            (
                "average precision",
                before.average_precision,
                after.average_precision,
                self.ap_loss,
            ),
        ):
            if first is None or second is None or first - second <= allowed:
                continue
            found.append(
                f"the {name} falls from {first:.4f} to {second:.4f}, by "
                f"{first - second:.4f} where {allowed:g} may be lost"
            )
        return found


class SourceFile(msgspec.Struct, frozen=True):
    """A file that a conversion read, relative to the folder it wrote, with its hash."""

    path: str
    sha256: Sha256

    def unusable(self, folder: Path) -> str:
        """Explain why the file is not the one that was read; empty if it is."""
        path = self.below(folder)
        if not path.is_file():
            return f"{path} is not there"
        if hash_file(path) != self.sha256:
            return f"{path} has changed since the conversion"
        return ""

    def below(self, folder: Path) -> Path:
        """Return the file's path, from the folder that the conversion wrote."""
        return Path(os.path.normpath(folder.absolute() / self.path))


class MadeFrom(msgspec.Struct, frozen=True):
    """
    The files of a conversion, and the options that say how the model is read.

    The Python of another environment and the trust in a pickle are not recorded: both
    run code, so a person must state them each time.

    Attributes:
        sample: Raw rows; None if there are none.
        columns: Names of its features that a person stated.
        missing: The number that stands for a missing value; None for NaN.
    """

    source: SourceFile
    sample: SourceFile | None = None
    columns: tuple[str, ...] = ()
    missing: float | None = None


def source_file(path: Path, folder: Path) -> SourceFile:
    """Describe a file relative to a folder."""
    near = os.path.relpath(path.absolute(), folder.absolute())
    return SourceFile(path=near, sha256=hash_file(path))


class Source(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The trained model.

    Attributes:
        framework: Library that trained it.
        version: Version of that library.
        objective: Training objective.
        classes: Class labels, in the order of the probabilities.
        trees: Number of trees in use, after early stopping.
        parameters: Parameters that were set; all others have the library's defaults.
        written_by: Version of the library that wrote the file, if the version above,
            which read it, does not guarantee the same predictions; otherwise empty.
        kind: `number` for a model that answers one number, in a unit of its own;
            `classes` for one that answers a probability for each class.
    """

    framework: str
    version: str
    objective: str
    classes: tuple[int | str, ...]
    trees: int
    parameters: dict[str, Parameter]
    written_by: str = ""
    kind: Literal["classes", "number"] = "classes"


class Graph(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The converted model.

    Attributes:
        converter: Library that wrote the trees, with its version.
    """

    converter: str
    opset: dict[str, int]
    ir: int
    size_bytes: int


class Distribution(msgspec.Struct, frozen=True):
    """
    Distribution of one number in the training rows.

    Attributes:
        quantiles: Value at each of `Training.quantiles`, finite values only; empty
            when no row has one. The oldest records have None for an infinity.
        missing: Share of rows without a value (NaN).
        infinite: Share of rows with an infinity; no quantile counts these.
    """

    quantiles: tuple[float | None, ...] = ()
    missing: float = 0.0
    infinite: float = 0.0


class Training(msgspec.Struct, frozen=True):
    """
    The training rows, with which served requests are compared.

    Attributes:
        frauds: Number of rows labelled 1; None without labels.
        quantiles: Quantile levels that distributions list, 0 to 1.
        features: Distribution of each feature, in order.
        score: Distribution of the converted model's P(1).
        origin: `training` for exactly the rows that the model was trained on; `held
            out` for rows excluded from training; `sample` for rows supplied with the
            model whose role in training is unknown.
        note: Description of the origin.
    """

    rows: int = 0
    frauds: int | None = None
    quantiles: tuple[float, ...] = ()
    features: dict[str, Distribution] = {}
    score: Distribution | None = None
    origin: Literal["training", "held out", "sample"] = "training"
    note: str = ""


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """
    The map from the raw score of an outlier detector to its answer.

    The answer is 1 - P(a normal row scores at least as high). Between two knots the
    logarithm of that probability is a straight line.

    Attributes:
        scale: Scale of `scores`: `log` for the natural logarithm of the raw score.
        scores: Raw scores of the knots on that scale, ascending. The raw score rises
            with the anomaly.
        false_alarms: Probability at each knot, descending from 1.
        rows: Number of normal rows that it was fitted to.
        source: Description of these rows.
    """

    scale: Literal["linear", "log"]
    scores: tuple[float, ...]
    false_alarms: tuple[float, ...]
    rows: int
    source: str


class Artifact(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """
    The record of one converted model.

    A server reads some of the fields; the others, such as `source`, then have their
    defaults.

    Attributes:
        sha256: SHA-256 of the model file in the same folder.
        spec_hash: Hash of the feature spec it was trained with, 16 hexadecimal digits;
            None when it was converted for no product, so that it cannot be published.
        features: Names of its features, in order.
        parity: Difference between the two, for each runtime in which it was proven.
        training: The training rows, or a similar sample; None if no rows were supplied.
        created: Time of conversion, RFC 3339 in UTC.
        targets: Triton releases whose onnxruntime was used to prove it.
        categories: Feature -> the categories of it that the source knows.
        us_per_row: Rows of a batch -> µs per row on one thread of the machine that
            converted it; empty in older records.
        trades: Loss and gain of each step that made it smaller, in order. A `quantize`
            comes after the proof: `parity` then describes the graph before it.
        allowed: Loss allowed for these steps; None without trades.
        parity_of: The subject of `parity`: the model in this folder, or the graph from
            which it was quantised; then no proof covers the model.
        files: SHA-256 by name of the files in the folder that programs read later.
            Cards, pictures and parity.json are for people.
        oracle: The reference it was proven against; None in older records.
        made_from: The files it was converted from; None if there was none, and in older
            records.
        calibration: Part of the graph of an outlier detector; None for other models.
    """

    sha256: Sha256
    spec_hash: SpecHash | None
    features: tuple[str, ...]
    source: Source | None = None
    graph: Graph | None = None
    parity: tuple[ParityReport, ...] = ()
    training: Training | None = None
    created: UtcTime | None = None
    targets: tuple[str, ...] = ()
    categories: dict[str, Vocabulary] = {}
    us_per_row: dict[int, float] = {}
    allowed: Gate | None = None
    trades: tuple[Trade, ...] = ()
    parity_of: Literal["model", "before quantize"] = "model"
    files: dict[Name, Sha256] = {}
    oracle: Oracle | None = None
    made_from: MadeFrom | None = None
    calibration: Calibration | None = None


# The fields that decide whether a model fits and serves.
_SERVED = (
    "sha256",
    "spec_hash",
    "features",
    "parity",
    "trades",
    "allowed",
    "files",
    "categories",
    "oracle",
    "made_from",
    "calibration",
)


def _part(*names: str) -> type[msgspec.Struct]:
    """Derive a struct of some fields of a record; it skips the others unread."""
    fields = {one.name: one for one in msgspec.structs.fields(Artifact)}
    part: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for one in (fields[name] for name in names):
        if one.required:
            part.append((one.name, one.type))
        elif one.default is msgspec.NODEFAULT:
            default = msgspec.field(default_factory=one.default_factory)
            part.append((one.name, one.type, default))
        else:
            part.append((one.name, one.type, one.default))
    return msgspec.defstruct("Part", part)


_ServedPart = _part(*_SERVED)
_TrainingPart = _part("training")


def require_proof(version: Path) -> None:
    """
    Check that a model was proven in the onnxruntime that serves it here.

    Raises:
        RepositoryError: The record has no proof for that runtime, or one that failed;
            or making it smaller lost more than was allowed.
    """
    path = version / ARTIFACT_FILE
    runtime = f"onnxruntime {OURS.onnxruntime}"
    record = read_artifact(version)
    reports = record.parity
    if runtime not in {one.runtime for one in reports}:
        found = ", ".join(one.runtime for one in reports) or "none"
        problem = f"has no proof for {runtime}, only for: {found}; convert it again"
        raise RepositoryError(path, problem, where="parity")
    for report in reports:
        if not report.passed or report.tolerance > TOLERANCE:
            problem = f"says that it does not answer as its source: {report.figures}"
            raise RepositoryError(path, problem, where="parity")
    gate = record.allowed or Gate()
    for trade in record.trades:
        for found in gate.problems(trade):
            problem = f"{trade.kind} ({trade.detail}) costs too much: {found}"
            raise RepositoryError(path, problem, where="trades")


def require_same_files(version: Path, files: Mapping[str, str]) -> None:
    """
    Check that the files next to a model are those that its record names.

    Args:
        version: The version directory.
        files: SHA-256 by name.

    Raises:
        RepositoryError: A file is missing or has other bytes.
    """
    for name, named in files.items():
        path = version / name
        if not path.is_file():
            raise RepositoryError(path, f"is missing: {ARTIFACT_FILE} names it")
        found = hash_file(path)
        if found != named:
            raise RepositoryError(
                path,
                f"has SHA-256 {found[:SHORT_DIGITS]}…, {ARTIFACT_FILE} says "
                f"{named[:SHORT_DIGITS]}…: damaged, or of another model",
            )


def read_artifact(version: Path) -> Artifact:
    """
    Read the fields of a version directory's artifact.json that a server needs.

    Raises:
        RepositoryError: It is missing, or one of these fields is missing or wrong; the
            model was converted for no product.
    """
    path = version / ARTIFACT_FILE
    try:
        part = msgspec.json.decode(path.read_bytes(), type=_ServedPart)
    except OSError as exc:
        raise RepositoryError(path, f"cannot be read: {exc.strerror}") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RepositoryError(path, str(exc)) from exc
    artifact = Artifact(**{name: getattr(part, name) for name in _SERVED})
    if artifact.spec_hash is None:
        problem = "is null: convert the model for a product"
        raise RepositoryError(path, problem, where="spec_hash")
    return artifact


def decode_training(content: bytes) -> Training | None:
    """
    Decode the training rows of a record; None if it has none.

    Raises:
        msgspec.MsgspecError: It is no JSON, or this field is wrong.
        UnicodeDecodeError: It is no text.
    """
    part: Any = msgspec.json.decode(content, type=_TrainingPart)
    training: Training | None = part.training
    return training

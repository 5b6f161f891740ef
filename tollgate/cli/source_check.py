"""Compare a converted model with its source model before `publish`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tollgate.cli import console, tables
from tollgate.errors import ConversionError, InputError, SetupError
from tollgate.repository.artifact import ARTIFACT_FILE, Artifact, read_artifact
from tollgate.repository.made_from import MadeFrom

if TYPE_CHECKING:
    from converters.conversion import Conversion
    from converters.purpose import Purpose
    from tollgate.features.spec import FeatureSpec
    from tollgate.server.model_trial import SourceAnswers

COMPARISON_HINT = (
    "`tollgate publish DIR --source MODEL --sample ROWS` compares them, and "
    "--history PURCHASES in the place of --sample replays features too"
)


class SourceOptions(msgspec.Struct, frozen=True):
    """
    Options of `publish` that choose the comparison with the source.

    Attributes:
        source: The trained model; None takes the one that the record names.
        sample: Raw rows of features; None takes those of the history or the record.
        history: Raw purchases.
        tables: NAME=FILE of each table that features read.
        trust_pickle: True to load a pickle, which runs the code in it.
        python: Python of the environment that trained the model; None for our own.
    """

    source: Path | None = None
    sample: Path | None = None
    history: Path | None = None
    tables: tuple[str, ...] = ()
    trust_pickle: bool = False
    python: Path | None = None

    @property
    def explicit(self) -> bool:
        """Return whether the user requests a comparison."""
        return not (self.source is None and self.sample is None and not self.history)


class SourceComparison(msgspec.Struct, frozen=True):
    """
    Source scores to compare served scores with.

    Attributes:
        answers: The source's scores; None where nothing is compared.
        reason: Why nothing is compared; empty where something is.
        replayed: Number of purchases whose online vectors equal the offline ones in
            every bit; None where none were replayed.
        windows: True if the product has windows, which a replay compares.
    """

    answers: SourceAnswers | None = None
    reason: str = ""
    replayed: int | None = None
    windows: bool = False


def compare_with_source(
    directory: Path,
    options: SourceOptions,
    *,
    repository: Path,
    product: str,
    spec: Path | None,
) -> SourceComparison:
    """
    Score raw rows with the source model, and replay raw purchases.

    Args:
        directory: The converted model.
        options: The user's options for the source.
        repository: The model repository.
        product: The product that the model is for.
        spec: Its new features.yaml; None for the one that is served.

    Raises:
        InputError: A file from the user is unusable, or there is no source.
        ConversionError: The source cannot be read.
        ServerError: A vector read online differs from offline.
    """
    from converters.purpose import purpose_of

    record = _record(directory)
    known = None if record is None else record.made_from
    reason = _reason(directory, options, record)
    if reason and options.explicit:
        where, problem = reason
        raise InputError(where, problem)
    if reason:
        return SourceComparison(reason=": ".join(reason))
    purpose = purpose_of(repository, product, new_spec=spec)
    windows = purpose.spec is not None and bool(purpose.spec.entities)
    with tempfile.TemporaryDirectory(prefix="tollgate-") as name:
        sample, replayed = options.sample, None
        if options.history is not None and purpose.spec is not None:
            rows = Path(name) / "rows.parquet"
            replayed = _replay(options, purpose.spec, rows=rows)
            sample = sample or rows
        if sample is None and known is not None and known.sample is not None:
            sample = known.sample.below(directory)
        conversion = _conversion(
            directory, options, known, purpose=purpose, sample=sample
        )
        try:
            answers = _answers(conversion)
        except (InputError, ConversionError, SetupError) as error:
            if options.explicit:
                raise
            return SourceComparison(reason=str(error))
        return SourceComparison(answers=answers, replayed=replayed, windows=windows)


def _record(directory: Path) -> Artifact | None:
    """
    Read the record; return None if it is missing, which publishing itself refuses.
    """
    there = (directory / ARTIFACT_FILE).is_file()
    return read_artifact(directory) if there else None


def _reason(
    directory: Path, options: SourceOptions, record: Artifact | None
) -> tuple[str, str] | None:
    """Return why scores cannot be compared: location and problem."""
    known = None if record is None else record.made_from
    if record is not None and record.trades:
        kinds = ", ".join(one.kind for one in record.trades)
        return str(directory), f"was made smaller ({kinds}): its answers are its own"
    if options.source is None:
        if known is None:
            problem = f"{ARTIFACT_FILE} names no source; --source MODEL does"
            return "--source", problem
        if unusable := known.source.unusable(directory):
            return "--source", unusable
    if options.sample is None and options.history is None:
        if known is None or known.sample is None:
            return "--sample", f"{ARTIFACT_FILE} names no raw rows; --sample ROWS does"
        if unusable := known.sample.unusable(directory):
            return "--sample", unusable
    if options.source is None and known is not None and not options.trust_pickle:
        from converters.sources.formats import format_of

        path = known.source.below(directory)
        if format_of(path) == "pickle":
            return str(path), "is a pickle: --trust-pickle loads it, with its code"
    return None


def _conversion(
    directory: Path,
    options: SourceOptions,
    known: MadeFrom | None,
    *,
    purpose: Purpose,
    sample: Path | None,
) -> Conversion:
    from converters.conversion import Conversion

    source = options.source
    if source is None:
        assert known is not None  # otherwise there was a reason
        source = known.source.below(directory)
    return Conversion(
        source=source,
        sample=sample,
        trust_pickle=options.trust_pickle,
        python=options.python,
        purpose=purpose,
        columns=() if known is None else known.columns,
        missing=None if known is None else known.missing,
    )


def _answers(conversion: Conversion) -> SourceAnswers:
    from converters.conversion import source_answers
    from tollgate.server.model_trial import SourceAnswers

    with console.progress("the source model answers"):
        rows, probabilities = source_answers(conversion)
    return SourceAnswers(rows=rows, probabilities=probabilities)


def _replay(options: SourceOptions, spec: FeatureSpec, *, rows: Path) -> int | None:
    """Write the vectors of the newest purchases; replay them if there are windows."""
    import polars as pl

    from tollgate.cli.replaying import newest_rows, replay_newest
    from tollgate.features.offline import build, feature_columns
    from tollgate.history import read_history

    assert options.history is not None
    history = read_history(options.history, spec=spec)
    if not len(history):
        raise InputError(options.history, "holds no purchases")
    known = tables.read_tables(list(options.tables), spec)
    taken = {one.name: values for one, values in known}
    vectors = build(spec, history, tables=taken)[newest_rows(history)]
    pl.DataFrame(feature_columns(spec.feature_names, vectors)).write_parquet(rows)
    return replay_newest(spec, history, known) if spec.entities else None

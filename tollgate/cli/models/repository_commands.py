"""Publish versions into a repository, and check it: `tollgate publish` and `check`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from tollgate.cli import console
from tollgate.cli import table_files as tables
from tollgate.cli.models.convert_commands import Python
from tollgate.cli.options import Json, ModelConfigName, Product, Repository, TrustPickle
from tollgate.cli.repositories import open_for_changes, open_for_reading
from tollgate.cli.table_files import TableFiles
from tollgate.errors import ConversionError, InputError, SetupError
from tollgate.settings import Settings

if TYPE_CHECKING:
    from converters.conversion import Conversion
    from converters.purpose import Purpose
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.repository.lint.lint_rule import Severity
    from tollgate.repository.lint.linting import Report
    from tollgate.repository.models.artifact_file import Artifact
    from tollgate.server.model_trial import SourceAnswers
    from tollgate.server.triton.control import Reachable


# Compare a converted model with its source model before `publish`.

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
            directory, options, record, purpose=purpose, sample=sample
        )
        try:
            answers = _answers(conversion)
        except (InputError, ConversionError, SetupError) as error:
            if options.explicit:
                raise
            return SourceComparison(reason=str(error))
        return SourceComparison(answers=answers, replayed=replayed, windows=windows)


def _record(directory: Path) -> Artifact | None:
    """Read the record; None if it is missing, which publishing itself refuses."""
    from tollgate.repository.models.artifact_file import read_artifact
    from tollgate.schema import ARTIFACT_FILE

    there = (directory / ARTIFACT_FILE).is_file()
    return read_artifact(directory) if there else None


def _reason(
    directory: Path, options: SourceOptions, record: Artifact | None
) -> tuple[str, str] | None:
    """Return why scores cannot be compared: location and problem."""
    from tollgate.schema import ARTIFACT_FILE

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
        from converters.sources.files.formats import format_of

        path = known.source.below(directory)
        if format_of(path) == "pickle":
            return str(path), "is a pickle: --trust-pickle loads it, with its code"
    return None


def _conversion(
    directory: Path,
    options: SourceOptions,
    record: Artifact | None,
    *,
    purpose: Purpose,
    sample: Path | None,
) -> Conversion:
    from converters.conversion import Conversion

    known = None if record is None else record.made_from
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
        calibrated=None if record is None else record.calibration,
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

    from tollgate.feature_parity import newest_rows, replay_newest
    from tollgate.features.offline import build, feature_columns
    from tollgate.history import read_history

    assert options.history is not None
    history = read_history(options.history, spec=spec)
    if not len(history):
        raise InputError(options.history, f"holds no {spec.rows_noun}")
    known = tables.read_tables(list(options.tables), spec)
    taken = {one.name: values for one, values in known}
    vectors = build(spec, history, tables=taken)[newest_rows(history)]
    pl.DataFrame(feature_columns(spec.feature_names, vectors)).write_parquet(rows)
    if not spec.entities:
        return None
    with console.progress("replaying") as advance:
        return replay_newest(spec, history, known, progress=advance)


def publish(
    directory: Annotated[
        Path, typer.Argument(help="Folder with model.onnx and artifact.json.")
    ],
    product: Product = None,
    repository: Repository = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="State folder of `tollgate up`; a server that runs there "
            "also loads the version.",
            show_default=".tollgate",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="host:port of the server that loads the version, if not "
            "the one in --state."
        ),
    ] = None,
    admin_secret_file: Annotated[
        Path | None,
        typer.Option(help="File with the admin secret of the server at --url."),
    ] = None,
    spec: Annotated[
        Path | None,
        typer.Option(
            help="New features.yaml that the model was made for; it becomes "
            "the next version of the features step, together with the "
            "hook.py next to it.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            help="Trained model; served answers to raw rows must equal its "
            "own answers in a separate process.",
            show_default="the one that DIR was converted from",
        ),
    ] = None,
    sample: Annotated[
        Path | None,
        typer.Option(
            help="Raw feature rows: Parquet, CSV or JSON lines.",
            show_default="those of the conversion",
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            help="Raw purchases instead of --sample; vectors of the newest "
            "2,000 must also be the same online and offline."
        ),
    ] = None,
    table: TableFiles = None,
    compare: Annotated[
        bool, typer.Option(help="Compare served answers with the source model.")
    ] = True,
    trust_pickle: TrustPickle = False,
    python: Python = None,
    dry_load: Annotated[
        bool, typer.Option(help="First load the version into a temporary server.")
    ] = True,
    as_json: Json = False,
) -> None:
    """
    Prove a model and add it as the next version; the active release does not change.
    """
    from tollgate.server import publishing

    chosen = console.settings(product=product, repository=repository, state=state)
    if admin_secret_file is not None and url is None:
        raise InputError("--admin-secret-file", "needs the server's --url")
    given = SourceOptions(
        source=source,
        sample=sample,
        history=history,
        tables=tuple(table or ()),
        trust_pickle=trust_pickle,
        python=python,
    )
    if given.explicit and not compare:
        problem = "compares nothing; leave out --source, --sample and --history"
        raise InputError("--no-compare", problem)
    server = _server(chosen, url=url, secret_file=admin_secret_file)
    asks_server = dry_load or server is not None
    if given.explicit and not asks_server:
        raise InputError("--source", "needs a server to compare; drop --no-dry-load")
    with open_for_changes(chosen) as folder:
        compared = SourceComparison(
            reason="--no-compare" if asks_server else "--no-dry-load"
        )
        if compare and asks_server:
            compared = compare_with_source(
                directory, given, repository=folder, product=chosen.product, spec=spec
            )
        if compared.replayed is not None:
            _print_step(f"{compared.replayed:,} vectors online = offline in every bit")
        published = publishing.publish(
            directory,
            repository=folder,
            product=chosen.product,
            server=server,
            dry_load=dry_load,
            spec=spec,
            answers=compared.answers,
            progress=_print_step,
        )
    if compared.answers is None:
        console.say(
            "served answers were NOT compared with the source model: "
            f"{compared.reason}; {COMPARISON_HINT}"
        )
    elif compared.windows and compared.replayed is None:
        console.say(
            "features were NOT replayed; --history PURCHASES compares their vectors "
            "online with offline"
        )
    if as_json:
        report = msgspec.structs.asdict(published) | {"product": chosen.product}
        console.print_json(report)
        return
    console.result(
        f"published  {published.step} version {published.version}\n"
        + (
            ""
            if published.features is None
            else f"features   version {published.features}; release both: tollgate "
            f"release activate --product {chosen.product} --set "
            f"features={published.features} --set model={published.version} "
            "--reason …\n"
        )
        + (
            f"serving    {published.release}, as before"
            if server
            else "serving    no server was notified; it loads what the release names"
        )
    )


def _print_step(done: str) -> None:
    """Print one part of the proof."""
    console.err.print(f"[green]✓[/] {done}", highlight=False, soft_wrap=True)


def _server(
    chosen: Settings, *, url: str | None, secret_file: Path | None
) -> Reachable | None:
    """Choose the server that loads the version: the given one, or the local one."""
    from tollgate.server.address import endpoint, find_server

    if chosen.repository_url:
        if url is not None:
            problem = "a server of an object store loads what the release names"
            raise InputError("--url", problem)
        return None
    if url is not None:
        return endpoint(url, secret_file=secret_file)
    found = find_server(chosen.state_path)
    if found is None:
        return None
    if found.repository_name != chosen.repository_name:
        console.say(f"{found.grpc_url} serves {found.repository}: not notified")
        return None
    return found


def check(
    repository: Repository = None,
    product: Annotated[
        str | None,
        typer.Option(help="Check only this ensemble.", show_default="all models"),
    ] = None,
    model_config_name: ModelConfigName = None,
    server_args: Annotated[
        Path | None,
        typer.Option(
            help="File that starts the server: script, Dockerfile, compose "
            "file, chart or unit.",
            metavar="FILE",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Triton release that will serve the repository, such as 26.07 or "
            "2.51.0.",
            metavar="RELEASE",
            show_default="the image of --server-args",
        ),
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(
            help="CPU cores that the server may use.",
            min=1,
            show_default="this machine's",
        ),
    ] = None,
    objective: Annotated[
        float | None,
        typer.Option(
            help="Maximum time to an answer, in milliseconds.",
            metavar="MS",
            min=0.1,
            show_default="a product's slo.yaml, or 50",
        ),
    ] = None,
    severity: Annotated[
        Literal["advice", "warning", "error"],
        typer.Option(help="Least severe findings to show."),
    ] = "warning",
    output_format: Annotated[
        Literal["text", "json"],
        typer.Option(
            "--format", help="Format of the findings; json is the same as --json."
        ),
    ] = "text",
    as_json: Json = False,
    rules: Annotated[
        bool,
        typer.Option(
            "--rules", help="Print the rules as a Markdown table, and check nothing."
        ),
    ] = False,
) -> None:
    """Check any Triton repository offline; exit status 1 for warnings, 2 for errors."""
    from tollgate.repository.lint.exposure import release_of
    from tollgate.repository.lint.lint_rule import Severity
    from tollgate.repository.lint.linting import Question, lint, table
    from tollgate.repository.lint.start_line import read_server_command_line

    if rules:
        _print(table())
        return
    chosen = console.settings(
        product_is_known=product is not None,
        repository=repository,
        product=product,
        model_config_name=model_config_name,
    )
    is_named = product is not None or (
        len(chosen.products) == 1 and chosen.products != Settings().products
    )
    with open_for_reading(chosen) as folder:
        release = release_of(target) if target else ""
        line = read_server_command_line(server_args) if server_args else None
        report = lint(
            Question(
                repository=folder,
                product=chosen.product if is_named else "",
                config_name=chosen.model_config_name,
                release=release,
                release_origin="--target",
                start_line=line,
                cores=cores or len(os.sched_getaffinity(0)),
                objective_ms=objective,
            )
        )
    as_json = as_json or output_format == "json"
    if not as_json and not server_args and report.products:
        _print_limits(len(report.products))
    _print_report(report, threshold=Severity[severity.upper()], as_json=as_json)


def _print_limits(products: int) -> None:
    """Print the limits that this machine sets a server, or why it cannot start one."""
    from tollgate.server.processes.resources import measure

    try:
        here = measure(hard_files=True)
        here.require(products)
    except SetupError as error:
        console.say(f"this machine: {error}")
    else:
        console.say(f"this machine: {here.text(products)}")


def _print_report(report: Report, *, threshold: Severity, as_json: bool) -> None:
    """Print the findings at or above the threshold, and exit with their status."""
    from tollgate.repository.lint import lint_report as printed

    shown = printed.at_least(report.issues, threshold)
    status = printed.exit_status(shown)
    if as_json:
        _print([printed.json_text(shown, folder=Path.cwd())])
        raise typer.Exit(status)
    _print(printed.text_lines(shown, folder=Path.cwd()))
    if shown:
        console.say(printed.summary(shown))
    if not status:
        names = ", ".join(report.products) or f"{len(report.models)} model(s)"
        _print([f"{names}: sound"])
    if hidden := len(report.issues) - len(shown):
        console.say(f"{hidden} below {threshold}; --severity advice shows all")
    raise typer.Exit(status)


def _print(lines: Iterable[str]) -> None:
    """Print text literally: no colours, no markup in brackets, no line wrapping."""
    for line in lines:
        console.result(line)

"""Decide a file of purchases, and explain a decision: `tollgate score`, `explain`."""

from __future__ import annotations

import io
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from tollgate.cli import console, running_server
from tollgate.cli.decisions.journal_commands import (
    Folder,
    Keys,
    default_folder,
    default_keys,
)
from tollgate.cli.options import (
    Customer,
    DecisionId,
    Json,
    Product,
    Repository,
    State,
    TlsCa,
    TlsCert,
    TlsKey,
    TokenFile,
)
from tollgate.cli.repositories import open_for_reading
from tollgate.errors import InputError, SetupError
from tollgate.request_size import request_rows as few_of_one_id
from tollgate.schema import (
    AMOUNT,
    EVENT_TIME,
    MAX_BATCH_ROWS,
    REASON_SEPARATOR,
    TRANSACTION_ID,
    Degraded,
)
from tollgate.suggestions import suggest

if TYPE_CHECKING:
    import polars as pl

    from tollgate.audit.review.explanation import ExplainedRecord
    from tollgate.audit.review.list_text import ExplainedList
    from tollgate.features.spec.feature_spec import FeatureSpec
    from tollgate.settings import Settings
    from tollgate_client import Tls


def read_proof(
    ca: Path | None, certificate: Path | None, *, key: Path | None, token: Path | None
) -> tuple[Tls | None, str | None]:
    """
    Read a caller's credentials.

    Returns:
        TLS, None for plain text; the key, None for none.

    Raises:
        InputError: A file cannot be read, or only one of certificate and key is given.
    """
    from tollgate_client import tls_from

    tls = None
    if ca or certificate or key:
        tls = tls_from(authority=ca, certificate=certificate, key=key)
    if token is None:
        return tls, None
    try:
        return tls, token.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as exc:
        words = getattr(exc, "strerror", None) or "is not ASCII"
        raise InputError(token, f"cannot be read: {words}") from exc


Format = Literal["parquet", "csv", "jsonl"]

_STDIN = Path("-")
_SHOWN_ROWS = 20
_TIMEOUT_S = 10.0
_CONNECT_S = 2.0
_STORE_DEADLINE_MS = 1_000
_MEMORY = "memory"
_ROWS_AT_ONCE = 32 * MAX_BATCH_ROWS  # whole batches
_IN_FLIGHT = 4  # requests
# Bits that report a failure of the server. The others describe the row, such as a new
# customer or a missing field.
_FAILED = (
    Degraded.STORE_UNAVAILABLE
    | Degraded.LAST_KNOWN_VECTOR
    | Degraded.STATE_CORRUPT
    | Degraded.MODEL_OUTPUT
    | Degraded.LOOKUPS_UNREAD
    | Degraded.HOOK_FAILED
    | Degraded.HYSTERESIS_UNREAD
)
_ANSWER = ("decision", "score", "reason_codes", "degraded", "error", "release")


def score(
    file: Annotated[
        Path,
        typer.Argument(
            help="Purchases or readings: Parquet, CSV or JSON lines; - reads standard "
            "input."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Path of the file to write; standard output if omitted."),
    ] = None,
    format: Annotated[
        Format | None,
        typer.Option(help="Format of standard input and output.", show_default="jsonl"),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="host:port of the server.", show_default="that of --state, or :8001"
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Decide as usual, but store and journal nothing."
        ),
    ] = False,
    local: Annotated[
        bool,
        typer.Option("--local", help="Decide in this process, without a server."),
    ] = False,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="STORE",
            help="Store of --local: memory, memory:FILE, embedded:FOLDER (a state "
            "folder of `tollgate up`), or the URL of a Redis.",
            show_default="memory",
        ),
    ] = None,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="JOURNAL",
            help="Journal of --local: a folder, the URL of a Redis, or `store` for the "
            "Redis of --store.",
            show_default="none",
        ),
    ] = None,
    store_deadline_ms: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum milliseconds that the store may take per request; "
            "the server has a limit.",
        ),
    ] = _STORE_DEADLINE_MS,
    fail_on_error: Annotated[
        bool,
        typer.Option(
            "--fail-on-error",
            help="Exit with status 1 if a row has an error, or was decided "
            "without the result of the store, the model or the hook.",
        ),
    ] = False,
    product: Product = None,
    repository: Annotated[
        str | None,
        typer.Option(
            help="Model repository with the column names.",
            show_default="model_repository",
        ),
    ] = None,
    state: State = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    token_file: TokenFile = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object with `summary`, and with `rows` "
            "unless --out has them.",
        ),
    ] = False,
) -> None:
    """Decide the rows of a file: Parquet, CSV or JSON lines in, the same out."""
    from tollgate.history import rename_aliases
    from tollgate.history.request_columns import field_columns, wire_fields
    from tollgate.repository.releases.served_versions import served_spec

    kind = _output_kind(out, format)
    remote = {
        "--url": url,
        "--tls-ca": tls_ca,
        "--tls-cert": tls_cert,
        "--tls-key": tls_key,
        "--token-file": token_file,
    }
    _check_place({"--store": store, "--journal": journal}, remote, local=local)
    tls, token = read_proof(tls_ca, tls_cert, key=tls_key, token=token_file)
    chosen = console.settings(product=product, repository=repository, state=state)
    with open_for_reading(chosen) as models:
        spec = served_spec(models, product=chosen.product)
        frame = rename_aliases(_read(file, format or "jsonl"), spec)
        if spec.rows_noun == "readings":
            frame = _as_readings(frame, spec)
        for name in spec.columns:
            if name not in frame.columns:
                found = ", ".join(frame.columns)
                problem = f"column missing; the file has {found}"
                raise InputError(file, problem, where=name)
        columns, errors = _columns(frame, spec.columns, source=file)
        fields = wire_fields(spec, frame)
        columns |= field_columns(frame, fields, errors=errors)
        good = np.flatnonzero([error == "" for error in errors])
        answers = {name: _blank(name, errors) for name in _ANSWER}
        picked = {
            name: [column[row] for row in good] for name, column in columns.items()
        }
        if not len(good):
            parts: Iterator[Mapping[str, Any]] = iter(())
        elif local:
            parts = _decide_here(
                picked,
                models,
                product=chosen.product,
                request_rows=_request_rows(picked, spec),
                store=store,
                journal=journal,
                store_deadline_ms=store_deadline_ms,
                dry_run=dry_run,
            )
        else:
            parts = _decide_served(
                picked,
                spec,
                address=url or _server(chosen),
                fields=fields,
                store_deadline_ms=store_deadline_ms,
                dry_run=dry_run,
                tls=tls,
                token=token,
            )
        with console.progress("deciding") as advance:
            done = 0
            for part in parts:
                rows = good[done : done + len(part["error"])]
                _note(answers, rows, part)
                done += len(rows)
                advance(done, len(good))
    summary = _summary(answers)
    if as_json:
        decided = None if out else _decided(frame, answers).to_dicts()
        console.print_json({"summary": summary, "rows": decided})
    if out or not as_json:
        _write(frame, answers, out=out, kind=kind, noun=spec.rows_noun)
    _say(summary)
    failed = summary["failed"]
    if fail_on_error and failed:
        text = f"--fail-on-error: {failed:,} of {len(frame):,} rows failed"
        console.say(f"{text}; their answers are written all the same")
        raise typer.Exit(1)


def _check_place(
    here: Mapping[str, object], there: Mapping[str, object], *, local: bool
) -> None:
    """
    Check that the options are those of one place to decide.

    Args:
        here: Options of this process, by name; None where one is not given.
        there: Options of a server.
        local: True to decide in this process.

    Raises:
        InputError: An option of the other place is given.
    """
    for name, value in (there if local else here).items():
        if value is not None:
            problem = "needs --local; a server has its own"
            if local:
                problem = "names a server, but --local decides without one"
            raise InputError(name, problem)


def _decide_here(
    columns: dict[str, list[Any]],
    repository: Path,
    *,
    product: str,
    request_rows: int,
    store: str | None,
    journal: str | None,
    store_deadline_ms: int,
    dry_run: bool,
) -> Iterator[Mapping[str, Any]]:
    """Decide rows in this process; yield the columns of some answers at a time."""
    from tollgate import Engine

    rows = len(columns[EVENT_TIME])
    with Engine.open(
        repository,
        product=product,
        store=store or _MEMORY,
        journal=journal,
        store_deadline_s=store_deadline_ms * 1e-3,
    ) as engine:
        at_once = _ROWS_AT_ONCE if request_rows == MAX_BATCH_ROWS else request_rows
        for start in range(0, rows, at_once):
            stop = start + at_once
            part = {name: column[start:stop] for name, column in columns.items()}
            yield engine.decide(part, dry_run=dry_run)


def _decide_served(
    columns: dict[str, list[Any]],
    spec: FeatureSpec,
    *,
    address: str,
    fields: dict[str, str],
    store_deadline_ms: int,
    dry_run: bool,
    tls: Tls | None,
    token: str | None,
) -> Iterator[Mapping[str, Any]]:
    """Decide rows on a server; yield the columns of some answers at a time."""
    from tollgate.features.spec.feature_spec import wire_inputs
    from tollgate_client import Client

    with Client(
        address,
        product=spec.product,
        inputs=wire_inputs(spec),
        fields=fields,
        timeout_s=_TIMEOUT_S,
        store_deadline_ms=store_deadline_ms,
        tls=tls,
        token=token,
    ) as client:
        # A request that overtakes another one makes readings of its machines late.
        in_flight = 1 if spec.rows_noun == "readings" else _IN_FLIGHT
        for answer in client.decide_many(
            columns,
            batch_rows=_request_rows(columns, spec),
            in_flight=in_flight,
            dry_run=dry_run,
        ):
            codes = [REASON_SEPARATOR.join(one) for one in answer.reason_codes]
            yield {
                **{name: getattr(answer, name) for name in _ANSWER},
                "reason_codes": codes,
            }


def _request_rows(columns: Mapping[str, list[Any]], spec: FeatureSpec) -> int:
    """Return how many rows a request may hold; few if many are of one machine."""
    if spec.rows_noun != "readings":
        return MAX_BATCH_ROWS
    (machine,) = spec.entities
    return few_of_one_id(columns[machine.key])


def _server(chosen: Settings) -> str:
    """
    Find the server of the state folder, or another one at the port of the settings.

    Raises:
        SetupError: No server listens there; the message explains how to start one.
        InputError: The server of the state folder does not serve the product.
    """
    from tollgate.server.address import find_server

    found = find_server(chosen.state_path)
    if found is not None:
        if chosen.product not in found.products:
            there = suggest(chosen.product, found.products)
            problem = f"{found.grpc_url} does not serve {chosen.product!r}; {there}"
            raise InputError("--product", problem)
        return found.grpc_url
    place = ("127.0.0.1", chosen.grpc_port)
    try:
        socket.create_connection(place, timeout=_CONNECT_S).close()
    except OSError as exc:
        raise SetupError(
            f"no server runs in {chosen.state}, and none listens at "
            f"{place[0]}:{place[1]}",
            remedy=f"start one with `tollgate up --product {chosen.product}`, or name "
            "one with --url host:port",
        ) from exc
    return f"{place[0]}:{place[1]}"


def _summary(answers: dict[str, list[Any]]) -> dict[str, Any]:
    """
    Count the rows that were not decided, and the degraded ones by bit.

    Rows with an error, or with a bit that reports a server failure, count as failed.
    """
    bad = np.array([error != "" for error in answers["error"]], np.bool_)
    bits = np.array(answers["degraded"], np.uint32)
    by_bit = {bit: np.count_nonzero(bits & np.uint32(bit)) for bit in Degraded}
    return {
        "rows": len(bad),
        "decisions": Counter(one for one in answers["decision"] if one),
        "undecided": int(bad.sum()),
        "degraded": int(np.count_nonzero(bits)),
        "degraded_by_bit": {bit.name: int(count) for bit, count in by_bit.items()},
        "failed": int(np.count_nonzero(bad | ((bits & np.uint32(_FAILED)) != 0))),
    }


def _say(summary: dict[str, Any]) -> None:
    """Print to stderr how many rows failed, and how many are degraded by which bit."""
    from tollgate.audit.review.record_text import DEGRADED_TEXTS

    rows = summary["rows"]
    if undecided := summary["undecided"]:
        console.say(f"{undecided:,} of {rows:,} rows could not be decided: see `error`")
    if degraded := summary["degraded"]:
        console.say(f"{degraded:,} of {rows:,} rows are degraded:")
    for name, count in summary["degraded_by_bit"].items():
        if count:
            console.say(f"  {count:,} {name}: {DEGRADED_TEXTS[Degraded[name]]}")


def _read(file: Path, format: Format) -> pl.DataFrame:
    from tollgate.history import read_table

    if file != _STDIN:
        return read_table(file)
    import polars as pl

    content = io.BytesIO(sys.stdin.buffer.read())
    try:
        if format == "parquet":
            return pl.read_parquet(content)
        if format == "csv":
            return pl.read_csv(content, infer_schema=False)
        return pl.read_ndjson(content)
    except pl.exceptions.PolarsError as exc:
        problem = f"is not {format}: {str(exc).splitlines()[0]}"
        raise InputError("standard input", problem) from exc


def _as_readings(frame: pl.DataFrame, spec: FeatureSpec) -> pl.DataFrame:
    """
    Read times of any form, and add the columns that a table of readings may lack.

    Ids are made of machine and time; without machines, all readings are of one.
    """
    import polars as pl

    from tollgate.history import reading_ids
    from tollgate.product.reading_rows import ONLY_MACHINE
    from tollgate.product.table_reading import as_times_us

    machine = spec.entities[0].key
    if EVENT_TIME not in frame.columns:
        return frame
    times = as_times_us(frame[EVENT_TIME])
    if machine not in frame.columns:
        if times.drop_nulls().is_duplicated().any():
            return frame  # readings of several machines
        frame = frame.with_columns(pl.lit(ONLY_MACHINE).alias(machine))
    if times.null_count() == frame[EVENT_TIME].null_count():
        frame = frame.with_columns(times.alias(EVENT_TIME))
    if TRANSACTION_ID in frame.columns:
        return frame
    # A row that lacks one of them has an error of its own.
    machines = frame[machine].cast(pl.String).fill_null("")
    return frame.with_columns(reading_ids(machines, times.fill_null(0)))


def _columns(
    frame: pl.DataFrame, names: tuple[str, ...], *, source: Path
) -> tuple[dict[str, list[Any]], list[str]]:
    """Convert a table to columns of a request; report cells that cannot be sent."""
    import polars as pl

    errors = [""] * len(frame)
    columns: dict[str, list[Any]] = {}
    for name in names:
        column = frame[name]
        if name == AMOUNT:
            typed = column.cast(pl.Float64, strict=False)
            rule = "is not a number"
        elif name == EVENT_TIME:
            typed, rule = _times(column, source), "is not a time"
        else:
            typed, rule = column.cast(pl.String), "is missing"
        columns[name] = typed.to_list()
        for row in np.flatnonzero(typed.is_null().to_numpy()).tolist():
            value = "" if column[row] is None else f"{column[row]!r:.60}"
            errors[row] = errors[row] or f"{name}: {value}: {rule}"
    return columns, errors


def _times(column: pl.Series, source: Path) -> Any:
    import polars as pl

    if isinstance(column.dtype, pl.Datetime):
        if column.dtype.time_zone:
            column = column.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        moment = column.cast(pl.Datetime("us"))
        return moment.cast(pl.Int64)
    if column.dtype == pl.String:
        number = column.cast(pl.Int64, strict=False)
        texts = column.filter(number.is_null() & column.is_not_null())
        if len(texts) == 0:
            return number
        try:
            moment = column.str.to_datetime(time_unit="us", strict=False)
        except pl.exceptions.ComputeError:
            return number  # no text of the column is a time
        return number.fill_null(moment.cast(pl.Int64))
    if not column.dtype.is_integer():
        raise InputError(source, f"{column.dtype} is not a time", where=EVENT_TIME)
    return column.cast(pl.Int64)


def _blank(name: str, errors: list[str]) -> list[Any]:
    if name == "error":
        return list(errors)
    empty = {"score": None, "degraded": 0}.get(name, "")
    return [empty] * len(errors)


def _note(answers: dict[str, list[Any]], rows: Any, part: Mapping[str, Any]) -> None:
    """Store the columns of some answers at the positions of their rows."""
    for position, row in enumerate(rows.tolist()):
        value = float(part["score"][position])
        answers["score"][row] = None if np.isnan(value) else value
        answers["degraded"][row] = int(part["degraded"][position])
        for name in ("decision", "reason_codes", "error", "release"):
            answers[name][row] = str(part[name][position])


def _output_kind(out: Path | None, format: Format | None) -> str:
    """Choose the output format before anything is decided; `table` is for a person."""
    if out is None:
        return format or ("table" if sys.stdout.isatty() else "jsonl")
    kind = {".ndjson": "jsonl"}.get(out.suffix, out.suffix[1:])
    if kind not in ("parquet", "csv", "jsonl"):
        raise InputError(out, f"{out.suffix!r} is none of .parquet, .csv, .jsonl")
    return kind


def _decided(frame: pl.DataFrame, answers: dict[str, list[Any]]) -> pl.DataFrame:
    """Add the decisions to the rows of the file, as columns."""
    import polars as pl

    types = {"score": pl.Float32, "degraded": pl.UInt32}
    return frame.with_columns(
        pl.Series(name, values, dtype=types.get(name, pl.String))
        for name, values in answers.items()
    )


def _write(
    frame: pl.DataFrame,
    answers: dict[str, list[Any]],
    *,
    out: Path | None,
    kind: str,
    noun: str,
) -> None:
    from tollgate.repository.atomic import replace_file

    decided = _decided(frame, answers)
    if kind == "table":
        console.out.print(_table(decided, noun))
        return
    target = io.BytesIO()
    if kind == "parquet":
        decided.write_parquet(target)
    elif kind == "csv":
        decided.write_csv(target)
    else:
        decided.write_ndjson(target)
    if out:
        replace_file(out, target.getvalue())
    else:
        sys.stdout.buffer.write(target.getvalue())


def _table(decided: pl.DataFrame, noun: str) -> Table:
    known = [name for name in ("transaction_id", AMOUNT) if name in decided.columns]
    shown = (*known, *_ANSWER[:-1])
    title = f"{len(decided):,} {noun}"
    if len(decided) > _SHOWN_ROWS:
        title += f", the first {_SHOWN_ROWS}; --out FILE writes them all"
    table = Table(title=title)
    for name in shown:
        table.add_column(name, overflow="fold")
    for row in decided.head(_SHOWN_ROWS).select(shown).iter_rows():
        table.add_row(
            *(
                f"{one:.4f}" if isinstance(one, float) else escape(str(one))
                for one in row
            )
        )
    return table


def explain(
    decision: DecisionId,
    customer: Customer = None,
    journal_url: Annotated[
        str | None,
        typer.Option(
            help="URL of the Redis with the journal stream, for decisions "
            "that are not sealed yet.",
            show_default="the store",
        ),
    ] = None,
    folder: Folder = None,
    keys: Keys = None,
    as_json: Json = False,
    notice: Annotated[
        bool,
        typer.Option(
            "--notice", help="Print the notice to the applicant: action and reasons."
        ),
    ] = False,
    product: Product = None,
    repository: Repository = None,
    state: State = None,
) -> None:
    """Explain a decision: rules, thresholds, and the features that moved the score."""
    import msgspec

    from tollgate.audit.review.explanation import explain_sealed

    chosen = console.settings(
        product_is_known=folder is None,
        product=product,
        repository=repository,
        state=state,
        journal_url=journal_url,
    )
    place = folder or default_folder(chosen)
    try:
        found = explain_sealed(
            decision,
            place,
            keys=keys or default_keys(place),
            repository=_repository(chosen),
            customer=customer,
        )
    except InputError as exc:
        pending = _explain_pending(decision, place, chosen, instead=exc)
        if pending is None:
            raise
        found = pending
    if notice:
        from tollgate.audit.review.notice import notice_text

        console.result(notice_text(found, application=decision))
        return
    if as_json:
        console.print_json(msgspec.structs.asdict(found) | {"margin": found.margin})
        return
    _print(found)


def _explain_pending(
    decision: str, place: Path, chosen: Settings, *, instead: object
) -> ExplainedRecord | None:
    """Explain a decision that is still in the stream; None if it is not there."""
    from tollgate.audit.review.explanation import explain_pending
    from tollgate.errors import TollgateError

    try:
        return explain_pending(
            decision,
            running_server.journal_url(chosen),
            folder=place,
            product=chosen.product,
            repository=_repository(chosen),
        )
    except TollgateError:
        console.say(f"not in the journal ({instead}), and not looked for in the stream")
        raise


def _repository(chosen: Settings) -> Path | None:
    return chosen.repository_path if chosen.repository_path.is_dir() else None


def _print(found: ExplainedRecord) -> None:
    score = "no score" if found.score is None else f"score {found.score:.4f}"
    console.result(f"{found.decision}, {score}, by {found.release} at {found.decided}")
    console.result(f"record {found.record}, {found.place}")
    if found.threshold is not None:
        one = found.threshold
        _, middle, severest = found.outcomes
        second = f"no score gives {severest}"
        word = "up to" if one.lower else "from"
        if one.decline is not None:
            second = f"{severest} {word} {one.decline:g}"
        console.result(
            f"thresholds of segment {one.segment}: {middle} {word} {one.review:g}, "
            f"{second}"
        )
    for rule in found.rules:
        console.result(f"rule {rule.name} held: {rule.value} ({rule.meaning})")
    for bit in found.degraded:
        console.result(f"{bit.name}: {bit.value}")
    if found.ranked is not None:
        _print_list(found.ranked)
    if found.unexplained:
        console.result(f"no exact contributions: {found.unexplained}")
    elif not found.contributions:
        console.result("no feature contributed: the rule decided before the model")
    else:
        _print_contributions(found)
    reasons = [one.text for one in found.reasons] or [
        f"{one.value or one.name}" for one in found.codes
    ]
    if reasons:
        console.result("reasons for the person:")
    for number, text in enumerate(reasons, start=1):
        console.result(f"  {number}. {text}")


def _print_list(ranked: ExplainedList) -> None:
    console.result(f"{len(ranked.items)} items of {ranked.candidates} candidates:")
    for number, one in enumerate(ranked.items, start=1):
        score = "not scored" if one.score is None else f"{one.score:.4f}"
        why = one.why
        if one.explored:
            why += f"; chosen by exploration, propensity {one.propensity:.3f}"
        console.result(f"  {number}. {one.item}, {score}, {one.source}: {why}")
    for note in ranked.notes:
        console.result(note)
    console.result(f"newest events: {'; '.join(ranked.events) or 'none'}")


def _print_contributions(found: ExplainedRecord) -> None:
    table = console.number_table("feature", "value", "moved the score by")
    for one in found.contributions:
        table.add_row(one.feature, f"{one.value:,.6g}", f"{one.amount:+.4f}")
    console.out.print(table)
    console.result(
        f"{found.expected:+.4f} before anything is known, {found.margin:+.4f} with it "
        "(the score's margin; of two classes its log-odds)"
    )

"""Assemble the server, the repository and the load of a tuning."""

from __future__ import annotations

import itertools
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tollgate.errors import ArgumentError, InputError, RepositoryError
from tollgate.load.sender import open_sender
from tollgate.load.surroundings import measured_on
from tollgate.repository.atomic import replace_file
from tollgate.repository.configs import NAMED_CONFIGS, require_config_name, to_text
from tollgate.repository.lint.lint_rule import Severity
from tollgate.repository.lint.linting import Question, lint
from tollgate.repository.product_models import Product, read_product
from tollgate.repository.serving_form import require_form
from tollgate.repository.slo import read_slo
from tollgate.server.address import Address
from tollgate.server.serving.loaded import record_path
from tollgate.server.triton import control
from tollgate.tuning.driver import Driver, Traffic
from tollgate.tuning.goals import (
    AlsoAlone,
    Goal,
    HighestRate,
    QuickestAnswer,
    limits_of,
)
from tollgate.tuning.override import Override
from tollgate.tuning.report import (
    Circumstances,
    Point,
    command_words,
    draw,
    paragraphs,
    points_of,
)
from tollgate.tuning.search import TURN, TuningResult, measurer_of, tune
from tollgate.tuning.settings import Configs, Roles
from tollgate.tuning.space import (
    LOW_LATENCY,
    THROUGHPUT,
    Candidate,
    candidates,
    narrowed,
)

# Write the winner as a named configuration, with a head that says how it was found.

_WIDTH = 86


def changed_steps(configs: Configs, candidate: Candidate, *, roles: Roles) -> list[str]:
    """List the models whose configuration a candidate changes."""
    written = roles.written(configs, candidate)
    return [step for step, config in configs.items() if written[step] != config]


def write_named(
    repository: Path,
    configs: Configs,
    candidate: Candidate,
    *,
    name: str,
    roles: Roles,
    head: Sequence[str],
    question: Question,
) -> list[Path]:
    """
    Write configs/NAME.pbtxt of each model that differs; on an error, write nothing.

    Args:
        head: Description of how they were found; paragraphs.

    Raises:
        ArgumentError: A configuration of this name exists already.
        RepositoryError: The linter reports findings in the new files.
    """
    changed = roles.written(configs, candidate)
    files = {
        repository / step / NAMED_CONFIGS / f"{name}.pbtxt": step
        for step in changed_steps(configs, candidate, roles=roles)
    }
    require_free(list(files), name=name)
    choice = command_words(candidate, name=name)
    try:
        for path, step in files.items():
            path.parent.mkdir(exist_ok=True)
            text = f"{_head(step, choice, head)}\n{to_text(changed[step])}"
            replace_file(path, text.encode())
        _require_sound(question, files=list(files))
    except BaseException:
        for path in files:
            path.unlink(missing_ok=True)
        raise
    return list(files)


def require_free(files: Sequence[Path], *, name: str) -> None:
    """Raise if a file of this name would be overwritten."""
    for path in files:
        if path.exists():
            problem = f"{path} is there already; choose another name, or remove it"
            raise ArgumentError("name", f"{name}: {problem}")


def _head(step: str, choice: str, paragraphs: Sequence[str]) -> str:
    """Write a comment with the name of the configuration and how it was found."""
    first = [
        f"{step}, as `tollgate tune` found it. Chosen with",
        f"    {choice}",
        "It stands in for config.pbtxt as a whole; why the rest is so, is said there.",
    ]
    lines = [f"# {line}" for line in first]
    for paragraph in paragraphs:
        lines += ["#", *(f"# {line}" for line in textwrap.wrap(paragraph, _WIDTH))]
    return "\n".join([*lines, ""])


def _require_sound(question: Question, *, files: Sequence[Path]) -> None:
    """Raise if the linter reports findings in the new files."""
    written = {str(path) for path in files}
    for issue in lint(question).issues:
        if issue.severity >= Severity.WARNING and issue.file in written:
            raise RepositoryError(issue.file, issue.problem, where=issue.where)


_IDLE_S, _IDLE_REQUESTS = 2.0, 12  # the supervisor's own probes are among these


class TuningOptions(msgspec.Struct, frozen=True):
    """
    Goal and limits of a tuning.

    Attributes:
        preset: "throughput" or "low-latency".
        name: Name of the configuration; empty for that of the preset, with a number if
            that name is taken.
        values: Values of knobs, in place of the preset's: "knob=value,value".
        most: Maximum number of settings to try.
        seconds: Duration of a run in the first round, s.
        turns: Turns of the comparison.
        rows: Rows in each request.
        p99_ms: Limit of the 99th percentile; None for the aim of slo.yaml.
        rate_per_s: Requests per second to begin with.
        cores: Cores of the server.
        command: Command line that repeats the tuning, without names of folders.
    """

    preset: str
    name: str
    values: tuple[str, ...]
    most: int
    seconds: float
    turns: int
    rows: int
    p99_ms: float | None
    rate_per_s: float
    seed: int
    cores: int
    command: str


class Bench:
    """
    One product on a running server, ready to be tuned.

    Args:
        wanted: Goal and limits of the tuning.

    Attributes:
        override: The server's settings; as a context manager it restores them at the
            end.
        unfusable: Reason why the fused form is not tried; empty if it is, or if it was
            not wanted.
    """

    def __init__(
        self, server: Address, wanted: TuningOptions, *, traffic: Traffic, state: Path
    ) -> None:
        if wanted.name:
            require_config_name(wanted.name)
        self._server = server
        self._traffic = traffic
        self._sender = ""
        self._repository = Path(server.repository)
        product = read_product(self._repository, traffic.product)
        self._roles = Roles(product)
        self.override = Override(
            server, record=record_path(state, traffic.product), roles=self._roles
        )
        name = wanted.name or self._free_name(wanted.preset)
        self.wanted = msgspec.structs.replace(wanted, name=name)
        self.unfusable = ""
        slo = read_slo(self._repository, product=traffic.product)
        rates = wanted.preset == "throughput"
        self._limits = limits_of(slo, p99_ms=wanted.p99_ms) if rates else None
        preset = THROUGHPUT if rates else LOW_LATENCY
        self._space = narrowed(preset, wanted.values)
        for knob in ("delay_us", "fused_queue_delay_us"):
            longest_us = max(self._space.get(knob, (0,)))
            if longest_us >= 1e3 * slo.layers_ms.model:
                problem = f"{longest_us} µs are the model's whole layer in slo.yaml"
                raise ArgumentError("values", f"{knob}: {problem}")
        self._leave_out_fused(product)

    def _leave_out_fused(self, product: Product) -> None:
        """
        Leave out the fused form, with the reason, if the product cannot have it.

        Raises:
            RepositoryError: It cannot, and no other form is to be tried.
        """
        forms = self._space.get("form", ())
        if self.override.form == "fused" or "fused" not in forms:
            return
        try:
            require_form(product, "fused")
        except RepositoryError as error:
            if forms == ("fused",):
                raise
            self.unfusable = str(error)
            self._space = {**self._space, "form": ("ensemble",)}

    @property
    def _goal(self) -> Goal:
        if self._limits is None:
            return QuickestAnswer()
        return HighestRate(self._limits, self.wanted.rate_per_s)

    @property
    def _last_goal(self) -> Goal:
        """Return the goal that the comparison measures."""
        goal = self._goal
        return AlsoAlone(goal) if isinstance(goal, HighestRate) else goal

    def require_free_name(self) -> None:
        """Raise if a configuration of the wanted name exists already."""
        require_free(self._files(self.wanted.name), name=self.wanted.name)

    def _free_name(self, name: str) -> str:
        numbered = (f"{name}-{number}" for number in itertools.count(2))
        names = itertools.chain([name], numbered)
        return next(one for one in names if not any(map(Path.exists, self._files(one))))

    def _files(self, name: str) -> list[Path]:
        steps = self.override.configs
        folders = [self._repository / step / NAMED_CONFIGS for step in steps]
        return [folder / f"{name}.pbtxt" for folder in folders]

    def tune(self, *, report: Callable[[str], None]) -> TuningResult:
        """Search on the server through the override; see `tuning.tune`."""
        wanted, base = self.wanted, self.override.base
        if self.unfusable:
            report(f"the fused form is not tried: {self.unfusable}")
        others = candidates(
            self._roles.possible(self._space, self.override.configs),
            base,
            most=wanted.most,
            cores=wanted.cores,
            seed=wanted.seed,
        )
        if not others:
            problem = "leaves nothing to try besides the current settings"
            raise ArgumentError("values", problem)
        with open_sender(
            self._server.grpc_url, timeout_s=self._traffic.timeout_s, report=report
        ) as sender:
            self._sender = sender.name
            drive = Driver(self._server, self._traffic, sender=sender)
            return tune(
                measurer_of(self.override, self._goal, drive),
                base,
                others,
                seconds=wanted.seconds,
                turns=wanted.turns,
                again=measurer_of(self.override, self._last_goal, drive),
                report=report,
            )

    def points(self, tuned: TuningResult) -> list[Point]:
        """Return settings at rates that they sustain, by throughput."""
        return points_of(tuned.tried, limits=self._limits)

    def circumstances(self) -> Circumstances:
        """Return the conditions under which the figures were measured."""
        wanted = self.wanted
        return Circumstances(
            machine=measured_on(),
            command=wanted.command,
            release=self.override.release,
            rows=wanted.rows,
            limits=self._limits,
            sender=self._sender,
            seconds=TURN * wanted.seconds,
        )

    def keep(self, tuned: TuningResult, folder: Path) -> None:
        """Write all runs, tuning.json, and their picture, tuning.png."""
        folder.mkdir(parents=True, exist_ok=True)
        record = {"circumstances": self.circumstances(), "tuned": tuned}
        text = msgspec.json.format(msgspec.json.encode(record), indent=1)
        (folder / "tuning.json").write_bytes(text + b"\n")
        draw(
            tuned,
            self.points(tuned),
            folder / "tuning.png",
            limits=self._limits,
            unit=self._goal.unit,
        )

    def write(self, tuned: TuningResult) -> list[Path]:
        """Write the winner, if there is one; see `written.write_named`."""
        if tuned.compared is None or tuned.winner is None:
            return []
        around = self.circumstances()
        return write_named(
            self._repository,
            self.override.configs,
            tuned.winner,
            name=self.wanted.name,
            roles=self._roles,
            head=paragraphs(tuned, tuned.compared, around),
            question=Question(
                repository=self._repository,
                product=self._traffic.product,
                config_name=self.wanted.name,
                cores=self.wanted.cores,
            ),
        )


def require_idle(server: Address) -> None:
    """
    Check that no other caller sends decision requests to a server.

    Raises:
        InputError: Another caller does: the tuning would disturb it, and it the
            figures.
    """

    def answered() -> int:
        counters = control.statistics(server)
        return sum(
            int(counters.get(one, {}).get("inference_count", 0))
            for one in server.products
        )

    before = answered()
    time.sleep(_IDLE_S)
    others = answered() - before
    if others > _IDLE_REQUESTS:
        problem = f"{server.grpc_url} decided {others} rows within {_IDLE_S:g} s: "
        raise InputError("tune", problem + "others use it")

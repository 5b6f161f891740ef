"""Convert a model and prove it, here and in the runtimes of other Triton releases."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from converters.model import F32, Facts, Probes, TrainedModel
from converters.onnx.graph import rounds_first
from converters.parity.order import judge_order
from converters.parity.parity import Comparison, Reference, ask, judge
from converters.parity.runner import Runner, onnx_runner
from tollgate.errors import ConversionError
from tollgate.repository.models.artifact_file import ParityReport
from tollgate.repository.models.targets import OURS

NUMBER_LEVELS = (0.5, 0.9, 0.99)  # quantiles that stand for thresholds
SAMPLE_ROWS = 100_000  # of a sample, evenly spaced


class Proven(msgspec.Struct, frozen=True, eq=False):
    """
    A converted model with its proof.

    Attributes:
        model: The converted graph.
        reference: The source's predictions for the probe rows.
        comparisons: One comparison per runtime; the first is this machine's.
        targets: Triton releases whose onnxruntime these are.
    """

    facts: Facts
    model: bytes
    reference: Reference
    comparisons: tuple[Comparison, ...]
    targets: tuple[str, ...] = (OURS.release,)

    @property
    def report(self) -> ParityReport:
        """Return the report of this machine's runtime."""
        return self.comparisons[0].report

    @property
    def reports(self) -> tuple[ParityReport, ...]:
        """Return the report of every runtime."""
        return tuple(one.report for one in self.comparisons)

    @property
    def passed(self) -> bool:
        """Return whether the model passed in every runtime."""
        return all(report.passed for report in self.reports)

    def check(self) -> None:
        """Raise ParityError with the figures if the model failed in any runtime."""
        for report in self.reports:
            report.check()


def prove(
    source: TrainedModel,
    *,
    samples: F32 | None,
    thresholds: Sequence[float],
    targets: Sequence[str] = (),
    wide: bool = False,
) -> Proven:
    """
    Convert a model and compare it with its source; the report may say that it failed.

    Args:
        samples: Rows as served; float32 [N, F]; None generates some.
        thresholds: Scores at which the policy's decision changes; empty for those of a
            number that about half, a tenth and a hundredth of the sample rows reach.
        targets: Triton releases in whose onnxruntime it is proven too.
        wide: True if its features are served as float64.

    Raises:
        ConversionError: It cannot be converted, the sample does not fit, or the source
            refuses most of its rows, so that nothing would be proven.
        InputError: A target is not known.
        SetupError: A target's environment cannot be created here.
    """
    facts = source.facts
    converted = source.convert(wide=wide)
    if samples is not None:
        if samples.shape[1] != facts.columns:
            raise ConversionError(
                f"the model has {facts.columns} features, the rows to prove it on "
                f"have {samples.shape[1]}"
            )
        at = np.linspace(0, len(samples) - 1, min(len(samples), SAMPLE_ROWS))
        samples = samples[at.astype(int)]
    probes = source.probes(samples)
    # If the graph rounds its input first, compare it with float32 predictions.
    exact = wide and not rounds_first(converted)
    reference = ask(source.predict, probes, wide=exact, number=facts.number)
    _require_answers(probes, reference, made=samples is None)
    if facts.number and not thresholds:
        usual = reference.probabilities[reference.kind == "sample", 0]
        reached = np.quantile(usual, NUMBER_LEVELS)
        thresholds = sorted({float(f"{one:.3g}") for one in reached.tolist()})
    return prove_graph(
        converted,
        facts=facts,
        reference=reference,
        thresholds=thresholds,
        targets=targets,
    )


def _require_answers(probes: Probes, reference: Reference, *, made: bool) -> None:
    """Raise unless the source predicts half of the sample rows, given or generated."""
    rows = int((probes.kind == "sample").sum())
    answered = int((reference.kind == "sample").sum())
    if 2 * answered < rows:
        hint = (
            "hand in a sample of rows that it knows" if made else "that proves nothing"
        )
        raise ConversionError(
            f"the source answers {answered:,} of the {rows:,} sample rows that the "
            f"converted model is compared on: {hint}"
        )


def _judge(
    reference: Reference, runner: Runner, facts: Facts, thresholds: Sequence[float]
) -> Comparison:
    """Compare rows, and of a ranker lists too."""
    found = judge(reference, runner, thresholds=thresholds)
    if not facts.ranks:
        return found
    order = judge_order(reference, runner)
    report = msgspec.structs.replace(found.report, order=order)
    return msgspec.structs.replace(found, report=report)


def prove_graph(
    model: bytes,
    *,
    facts: Facts,
    reference: Reference,
    thresholds: Sequence[float],
    targets: Sequence[str] = (),
) -> Proven:
    """
    Compare a graph with its source's predictions, in every requested runtime.

    Args:
        model: ONNX model, `features` to `probabilities`.
        thresholds: Scores at which the policy's decision changes.
        targets: Triton releases in whose onnxruntime it is proven too.

    Raises:
        ConversionError: A runtime cannot load it, or it has other classes.
        InputError: A target is not known.
        SetupError: A target's environment cannot be created here.
    """
    found = [_judge(reference, onnx_runner(model), facts, thresholds)]
    others = [name for name in dict.fromkeys(targets) if name != OURS.release]
    for name in others:
        from converters.parity.target_runtime import open_target

        with open_target(name) as runtime:
            runner = runtime.runner(model)
            found.append(_judge(reference, runner, facts, thresholds))
    return Proven(
        facts=facts,
        model=model,
        reference=reference,
        comparisons=tuple(found),
        targets=(OURS.release, *others),
    )

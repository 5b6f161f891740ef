"""Convert a model and prove it, here and in the runtimes of other servers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from converters.graph_edit import rounds_first
from converters.model import F32, Facts, Probes, TrainedModel
from converters.parity import Comparison, Reference, ask, judge
from converters.runner import onnx_runner
from tollgate.errors import ConversionError
from tollgate.repository.parity import ParityReport
from tollgate.repository.targets import OURS

SAMPLE_ROWS = 100_000  # of a sample, evenly spaced


class Proven(msgspec.Struct, frozen=True, eq=False):
    """
    A converted model with its proof.

    Attributes:
        facts: What is known of the source.
        model: The graph.
        reference: What the source answers to the probe rows.
        comparisons: One per runtime; the first is that of this machine's.
        targets: Releases of Triton whose onnxruntime these are.
    """

    facts: Facts
    model: bytes
    reference: Reference
    comparisons: tuple[Comparison, ...]
    targets: tuple[str, ...] = (OURS.release,)

    @property
    def report(self) -> ParityReport:
        """The figures in this machine's runtime."""
        return self.comparisons[0].report

    @property
    def reports(self) -> tuple[ParityReport, ...]:
        """The figures of every runtime."""
        return tuple(one.report for one in self.comparisons)

    @property
    def passed(self) -> bool:
        """Tell whether every runtime agrees."""
        return all(report.passed for report in self.reports)

    def check(self) -> None:
        """Raise ParityError with the figures unless every runtime agrees."""
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
    Convert a model and compare it with its source; the report may say that it fails.

    Args:
        source: The model.
        samples: Rows as served; float32 [N, F]; None makes some.
        thresholds: Scores at which the policy's decision changes.
        targets: Releases of Triton in whose onnxruntime it is proven as well.
        wide: Its features are served as float64.

    Raises:
        ConversionError: It cannot be converted, the sample does not fit, or the source
            refuses most of its rows, so that nothing would be proven.
        InputError: A target is not known.
        SetupError: A target's environment cannot be made here.
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
    # What the graph rounds first is compared as the source answers float32.
    exact = wide and not rounds_first(converted)
    reference = ask(source.predict, probes, wide=exact)
    _require_answers(probes, reference, made=samples is None)
    return prove_graph(
        converted,
        facts=facts,
        reference=reference,
        thresholds=thresholds,
        targets=targets,
    )


def _require_answers(probes: Probes, reference: Reference, *, made: bool) -> None:
    """Demand that the source answers half of the sample rows, handed in or made."""
    rows = int((probes.kind == "sample").sum())
    answered = int((reference.kind == "sample").sum())
    if 2 * answered < rows:
        hint = "hand in rows that it knows, --sample" if made else "that proves nothing"
        raise ConversionError(
            f"the source answers {answered:,} of the {rows:,} sample rows that the "
            f"converted model is compared on: {hint}"
        )


def prove_graph(
    model: bytes,
    *,
    facts: Facts,
    reference: Reference,
    thresholds: Sequence[float],
    targets: Sequence[str] = (),
) -> Proven:
    """
    Compare a graph with what its source answered, in every runtime that is asked for.

    Args:
        model: ONNX, `features` to `probabilities`.
        facts: What is known of the source.
        reference: Its answers.
        thresholds: Scores at which the policy's decision changes.
        targets: Releases of Triton in whose onnxruntime it is proven as well.

    Raises:
        ConversionError: A runtime cannot load it, or it has other classes.
        InputError: A target is not known.
        SetupError: A target's environment cannot be made here.
    """
    found = [judge(reference, onnx_runner(model), thresholds=thresholds)]
    others = [name for name in dict.fromkeys(targets) if name != OURS.release]
    for name in others:
        from converters.target import open_target

        with open_target(name) as runtime:
            runner = runtime.runner(model)
            found.append(judge(reference, runner, thresholds=thresholds))
    return Proven(
        facts=facts,
        model=model,
        reference=reference,
        comparisons=tuple(found),
        targets=(OURS.release, *others),
    )

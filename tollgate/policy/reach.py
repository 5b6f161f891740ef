"""Check that each segment and rule can hold, and that no other one blocks it."""

from __future__ import annotations

from collections.abc import Sequence

from tollgate.policy.conditions import Condition, Names
from tollgate.policy.document import Document, RawMeaning
from tollgate.policy.lines import Place
from tollgate.policy.spans import Box, Spans, common, meet, remove_all
from tollgate.policy.tables import Criterion
from tollgate.schema import Degraded

# Variables of boxes that no condition can name.
_SEGMENT, _EVENT_TIME = "segment ", "event time "
_EVER = 2**62


def check_reach(
    document: Document,
    names: Names,
    *,
    segments: Sequence[Criterion],
    rules: Sequence[Criterion],
) -> None:
    """
    Check that segments and rules can hold.

    Raises:
        PolicyError: Conditions contradict each other, two segments overlap, or earlier
            rules with `stop` leave no row to a rule.
    """
    _Reach(document, names, segments).check(rules)


class _Reach:
    def __init__(
        self, document: Document, names: Names, segments: Sequence[Criterion]
    ) -> None:
        self._document = document
        self._unscored = {Degraded.MODEL_OUTPUT.name} | {
            name
            for name, one in document.raw.degraded.items()
            if isinstance(one, RawMeaning) and one.fallback is not None
        }
        self._domains: dict[str, Spans] = names.domains | {
            _SEGMENT: ((0, len(segments)),),
            _EVENT_TIME: ((-_EVER, _EVER),),
        }
        self._segments = [
            self._box(one, ("segments", at, "when")) for at, one in enumerate(segments)
        ]
        self._refuse_overlaps()

    def check(self, rules: Sequence[Criterion]) -> None:
        """Check the rules in their order."""
        parts = self._parts()
        stopped: list[Box] = []
        stops: list[str] = []
        for at, criterion in enumerate(rules):
            place: Place = ("rules", at)
            box = self._box(criterion, (*place, "when"))
            boxes = [found for part in parts if (found := common(box, part))]
            if not boxes:
                problem = f"never holds in {', '.join(self._named(criterion))}"
                self._document.refuse((*place, "segments"), problem)
            if not remove_all(boxes, stopped, domains=self._domains):
                problem = f"is never reached: stopped by {' and '.join(stops)}"
                self._document.refuse(place, problem)
            if criterion.stop:
                stopped += boxes
                stops.append(self._document.raw.rules[at].name)

    def _parts(self) -> list[Box]:
        """
        Return all rows as disjoint boxes: those of each segment, and of no segment.
        """
        other = remove_all([{}], self._segments, domains=self._domains)
        return [
            *({**box, _SEGMENT: ((0, 0),)} for box in other),
            *(
                {**box, _SEGMENT: ((at, at),)}
                for at, box in enumerate(self._segments, 1)
            ),
        ]

    def _refuse_overlaps(self) -> None:
        raw = self._document.raw.segments
        for at, box in enumerate(self._segments):
            for before in range(at):
                if common(box, self._segments[before]) is not None:
                    line = self._document.source.line(("segments", before))
                    problem = f"overlaps {raw[before].name} of line {line}"
                    self._document.refuse(("segments", at), problem)

    def _box(self, criterion: Criterion, place: Place) -> Box:
        """Build the box of a segment's or a rule's conditions; it must not be empty."""
        box: dict[str, Spans] = {}
        for one in criterion.conditions:
            name = one.variable.name
            box[name] = meet(box.get(name, one.variable.domain), one.spans)
            if not box[name]:
                self._document.refuse((*place, name), "can never hold")
        self._scored(criterion.conditions, place)
        if criterion.segments is not None:
            box[_SEGMENT] = tuple((one, one) for one in criterion.segments)
        since = -_EVER if criterion.from_us is None else criterion.from_us
        until = _EVER if criterion.until_us is None else criterion.until_us - 1
        box[_EVENT_TIME] = ((since, until),)
        return box

    def _scored(self, conditions: Sequence[Condition], place: Place) -> None:
        """Refuse conditions on a score together with bits that leave no score."""
        without = [
            one.variable.name
            for one in conditions
            if one.variable.name in self._unscored and one.wanted
        ]
        for one in conditions:
            if one.variable.kind in ("score", "label") and without:
                problem = f"can never hold: with {without[0]} no score is used"
                self._document.refuse((*place, one.variable.name), problem)

    def _named(self, criterion: Criterion) -> list[str]:
        names = ["other", *(one.name for one in self._document.raw.segments)]
        return [names[at] for at in criterion.segments or range(len(names))]

"""
Poll readings, have them decided, publish alarms, and commit: at least once.

Alarms are published before their readings are committed. Whatever is killed in between,
the readings are delivered again, and give alarms with the same ids. So no alarm is
lost, and a receiver that stores the ids handles each once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from tollgate.alarms.alarm import Alarm, OutcomeRules, Report, alarm_id, score_of
from tollgate.alarms.outcomes import MachineOutcome, OutcomeStore
from tollgate.alarms.readings import ReadingCodec, Readings
from tollgate.alarms.scoring import ReadingAnswer, ServerScorer
from tollgate.metrics import counter, histogram
from tollgate.stream.batch_consumer import BatchConsumer, ConsumerMetrics
from tollgate.stream.source import Feed, Message, Source

# Four requests of 32 rows in each of four lanes. After a pause, the alarms of the first
# readings need not wait for the last ones.
BATCH_READINGS = 512
# Answers without the store are requested again while the store is away, and so often
# once it responds: a server's circuit breaker closes within a second. A stored decision
# that was made without the store would stay so for ever.
_TRIES_WITHOUT_STORE = 6
DECIDE_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
AGE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 15, 60, 300, 3600)


class AlarmConsumer(BatchConsumer):
    """
    Score the readings of one source, and publish alarms to one feed.

    Args:
        outcomes: The last outcome of each machine.
        report: Publish each change of a machine's outcome, or every reading whose
            outcome raises an alarm.
        stopped: Ends the run, and each retry.
        on_step: Called with the name of each step; tests stop there.
        now_us: The wall clock, µs since the epoch.

    Attributes:
        decided: Number of readings decided since the start.
        alarms: Number of alarms published since the start.
    """

    def __init__(
        self,
        source: Source,
        scorer: ServerScorer,
        alarms: Feed,
        *,
        product: str,
        codec: ReadingCodec,
        rules: OutcomeRules,
        outcomes: OutcomeStore,
        metrics: AlarmMetrics,
        stopped: threading.Event,
        report: Report = "changes",
        batch_readings: int = BATCH_READINGS,
        on_step: Callable[[str], None] = lambda step: None,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        super().__init__(
            source,
            name="alarm-consumer",
            most=batch_readings,
            metrics=metrics,
            stopped=stopped,
        )
        self._scorer = scorer
        self._alarms = alarms
        self._product = product
        self._codec = codec
        self._rules = rules
        self._outcomes = outcomes
        self._metrics = metrics
        self._report_as = report
        self._on_step = on_step
        self._now_us = now_us
        self.decided = 0
        self.alarms = 0

    def _handle(self, messages: Sequence[Message]) -> bool:
        """Decide, publish and commit a batch; return False if stopped before."""
        readings = self._codec.decode([message.value for message in messages])
        answers: dict[int, ReadingAnswer] = {}
        started_s = time.monotonic()
        if not self._decide(readings, answers):
            return False
        self._metrics.decide_s.observe(time.monotonic() - started_s)
        self._on_step("decided")
        refused = dict(readings.unreadable)
        refused |= {
            readings.at[row]: one.error for row, one in answers.items() if one.error
        }
        if not self._publish(readings, answers):
            return False
        self._on_step("published")
        if not self._commit(messages, refused=refused):
            return False
        self._on_step("committed")
        self._count(readings, answers, unreadable=len(readings.unreadable))
        return True

    def _decide(self, readings: Readings, answers: dict[int, ReadingAnswer]) -> bool:
        """Get an answer to each reading; return False if stopped before."""
        tries = 0
        while len(readings):
            if not self._retry(
                "server", lambda: self._scorer.decide(readings, answers)
            ):
                return False
            blind = [row for row, one in answers.items() if one.lacks_store]
            if not blind or tries == _TRIES_WITHOUT_STORE:
                break
            # While the store is away this waits, and no reading is decided blindly.
            if not self._retry("store", self._outcomes.require_store):
                return False
            tries += 1
            if tries < _TRIES_WITHOUT_STORE:
                for row in blind:
                    del answers[row]
                self._count_retry("store")
                if self._stopped.wait(0.1 * 2**tries):
                    return False
        return True

    def _publish(
        self, readings: Readings, answers: Mapping[int, ReadingAnswer]
    ) -> bool:
        """Publish the alarms of a batch, then store outcomes; False if stopped."""
        rows = [row for row in range(len(readings)) if not answers[row].error]
        if self._report_as == "every":
            every: list[tuple[int, str | None]] = [
                (row, None) for row in rows if self._rules.raises(answers[row].decision)
            ]
            return self._send(readings, answers, every)
        machines = list(dict.fromkeys(readings.machines[row] for row in rows))
        known: dict[str, MachineOutcome] = {}

        def read() -> None:
            known.update(self._outcomes.read(machines))

        if not self._retry("store", read):
            return False
        raised, now = self._changes(readings, answers, rows, known)
        if not self._send(readings, answers, raised):
            return False
        # Only after the alarms: a batch that is delivered again finds either the
        # outcomes of before, or, all of its alarms being published, its own readings.
        return self._retry("store", lambda: self._outcomes.write(now))

    def _changes(
        self,
        readings: Readings,
        answers: Mapping[int, ReadingAnswer],
        rows: Sequence[int],
        known: Mapping[str, MachineOutcome],
    ) -> tuple[list[tuple[int, str | None]], dict[str, MachineOutcome]]:
        """
        Find the readings that change their machine's outcome.

        Returns:
            Rows that raise an alarm, each with the outcome before, None for a late one;
            and the outcomes after the batch.
        """
        raised: list[tuple[int, str | None]] = []
        now = dict(known)
        ids: dict[str, list[str]] = {}
        clock_us = self._now_us()
        for row in rows:
            machine = readings.machines[row]
            reading_id = self._codec.reading_id(readings, row)
            ids.setdefault(machine, []).append(reading_id)
            if reading_id in known[machine].reading_ids:
                continue  # delivered again; its alarm is published
            before, outcome = now[machine], answers[row].decision
            time_us = min(self._codec.event_time_us(readings, row), clock_us)
            if time_us < before.newest_us:
                # Late, or sent again: it is not the outcome of now, but if it raises an
                # alarm, nobody may have heard of it.
                if self._rules.raises(outcome):
                    raised.append((row, None))
                continue
            if answers[row].lacks_hysteresis and self._rules.is_milder(
                outcome, than=before.outcome
            ):
                # Hysteresis may hold the level, and the next reading say so: an end
                # now would be a false one.
                continue
            if self._rules.is_change(before.outcome, outcome):
                raised.append((row, before.outcome))
            now[machine] = MachineOutcome(outcome, time_us)
        return raised, {
            machine: msgspec.structs.replace(one, reading_ids=tuple(ids[machine]))
            for machine, one in now.items()
        }

    def _send(
        self,
        readings: Readings,
        answers: Mapping[int, ReadingAnswer],
        raised: Sequence[tuple[int, str | None]],
    ) -> bool:
        """Publish alarms; return False if stopped before."""
        if not raised:
            return True
        alarms = [
            self._alarm(readings, row, answers[row], previous=previous)
            for row, previous in raised
        ]
        keys = [readings.machines[row].encode() for row, _ in raised]
        events = [msgspec.json.encode(alarm) for alarm in alarms]
        if not self._retry("alarms", lambda: self._alarms.send(keys, events)):
            return False
        self._on_step("sent")
        self._metrics.published(alarms, now_us=self._now_us())
        self.alarms += len(alarms)
        return True

    def _alarm(
        self,
        readings: Readings,
        row: int,
        answer: ReadingAnswer,
        *,
        previous: str | None,
    ) -> Alarm:
        reading_id = self._codec.reading_id(readings, row)
        return Alarm(
            alarm_id=alarm_id(self._product, reading_id),
            product=self._product,
            entities=self._codec.entities(readings, row),
            reading_id=reading_id,
            event_time=self._codec.event_time_us(readings, row),
            decision=answer.decision,
            previous=previous,
            score=score_of(answer.score),
            reason_codes=answer.reason_codes,
            degraded=answer.degraded,
            release=answer.release,
        )

    def _count(
        self,
        readings: Readings,
        answers: Mapping[int, ReadingAnswer],
        *,
        unreadable: int,
    ) -> None:
        invalid = sum(bool(one.error) for one in answers.values())
        self._metrics.count("decided", len(readings) - invalid)
        self._metrics.count("invalid", invalid)
        self._metrics.count("unreadable", unreadable)
        self.decided += len(readings) - invalid


class AlarmMetrics(ConsumerMetrics):
    """Hold the metrics of one consumer of readings."""

    def __init__(self, product: str) -> None:
        super().__init__("alarms", product=product)
        registry = self.registry
        self._readings = counter("tollgate_alarms_readings_total", registry)
        # A series that begins at 1 has no increase, so no alert would see the first.
        for outcome in ("decided", "invalid", "unreadable"):
            self._readings.labels(product, outcome)
        self._published = counter("tollgate_alarms_published_total", registry)
        self.decide_s = histogram(
            "tollgate_alarms_decide_seconds", registry, buckets=DECIDE_BUCKETS_S
        ).labels(product)
        self._age_s = histogram(
            "tollgate_alarms_age_seconds", registry, buckets=AGE_BUCKETS_S
        ).labels(product)

    def count(self, outcome: str, number: int) -> None:
        """Add readings: `decided`, `invalid` or `unreadable`."""
        if number:
            self._readings.labels(self.product, outcome).inc(number)

    def published(self, alarms: Sequence[Alarm], *, now_us: int) -> None:
        """Add alarms that are published, with the ages of their readings."""
        for one in alarms:
            self._published.labels(self.product, one.decision).inc()
            self._age_s.observe(max(0, now_us - one.event_time) / 1e6)

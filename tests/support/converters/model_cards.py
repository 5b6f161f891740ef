"""Records and figures for cards, and a reader of the page that becomes of them."""

from html.parser import HTMLParser

import numpy as np

from converters.card.quality import measure_quality
from converters.card.quality_record import Levels
from converters.folder import describe_training
from tollgate.repository.models.artifact_file import (
    Artifact,
    Disagreement,
    Graph,
    ParityReport,
    Source,
)

POLICY = Levels(names=("approve", "review", "decline"), thresholds=(0.35, 0.8))
VOID = {"meta", "line", "circle", "rect"}


def report(**changed):
    """Make a proof that passed."""
    fields = {
        "runtime": "onnxruntime 1.19.2",
        "rows": 12_345,
        "max_delta": 6.25e-8,
        "flips": 0,
        "batch_delta": 0.0,
        "thresholds": (0.35, 0.8),
        "tolerance": 1e-5,
        "worst": (Disagreement(row=3, kind="split", source=0.1, converted=0.1),),
        "mean_delta": 3.5e-9,
        "unanswered": 7,
        "kinds": {"sample": 345, "split": 12_000},
    }
    return ParityReport(**{**fields, **changed})


def record(names=("amount", "risk", "empty"), **changed):
    """Make a record of as many features as there are names."""
    chance = np.random.default_rng(0)
    features = chance.normal(100, 30, (200, len(names))).astype(np.float32)
    features[:50, 1] = np.nan
    features[:, -1] = np.nan
    training = describe_training(
        features,
        names=names,
        label=(np.arange(200) < 20).astype(int),
        score=chance.random(200).astype(np.float32),
    )
    fields = {
        "sha256": "0123456789abcdef" * 4,
        "spec_hash": "00c36f8242c6fa06",
        "features": names,
        "source": Source(
            framework="xgboost",
            version="3.2.0",
            objective="binary:logistic",
            classes=(0, 1),
            trees=123,
            parameters={"max_depth": 6},
        ),
        "graph": Graph(
            converter="onnxmltools 1.16.0",
            opset={"ai.onnx": 15},
            ir=8,
            size_bytes=1_234_567,
        ),
        "parity": (report(), report(runtime="onnxruntime 1.27.0", rows=12_346)),
        "training": training,
        "created": "2018-08-01T00:00:00Z",
        "targets": ("24.10", "26.07"),
        "us_per_row": {1: 12.34, 8: 5.67, 32: 1.89},
    }
    return Artifact(**{**fields, **changed})


def judged(**segments):
    """Judge made-up scores of 1,000 rows."""
    chance = np.random.default_rng(1)
    label = (chance.random(1000) < 0.2).astype(int)
    score = 1 / (1 + np.exp(-(chance.normal(size=1000) + 2 * label - 2)))
    found = np.stack([1 - score, score], axis=1)
    return measure_quality(
        label, found, classes=(0, 1), levels=POLICY, segments=segments, note="new rows"
    )


class Page(HTMLParser):
    """The tables and text of a page; fails where an element is not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.text, self.attributes = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data


def facts(page):
    """Return first cell -> the other cells, of all tables."""
    return {row[0]: row[1:] for table in page.tables for row in table}

"""A product decides by a number: the days until a loan is late, fewer are worse."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from lightgbm import LGBMClassifier, LGBMRegressor
from typer.testing import CliRunner

from converters.conversion import (
    Conversion,
    convert_file,
    convert_model,
    made_from,
)
from converters.folder import write_converted
from converters.purpose import purpose_of
from converters.sample import Sample
from converters.sources.worker import model_of
from tests.support.products import loans_product
from tests.support.products.plain_product import release_first, write_product
from tollgate import Engine
from tollgate.audit.releases.journal_replay import near_rows
from tollgate.cli.app import app
from tollgate.errors import InputError
from tollgate.features.offline import build
from tollgate.history import history_of
from tollgate.repository.lint.product_rules import check
from tollgate.repository.snapshot import RepositorySnapshot
from tollgate.server.serving.embedded import serve
from tollgate_client import Client

pytestmark = pytest.mark.slow

NOW_US = time.time_ns() // 1000
ROWS = 200
POLICY = """\
version: 1
product: loans
labels: [days]
score: {value: days, worse: lower}
thresholds: {review: 160.5, decline: 90}
fallback: {model_output: review}
degraded: {FIELD_MISSING: none}
rules:
  - {name: late, owner: desk, when: {score: {lt: 12}}, at_least: decline, code: LATE}
reasons:
  SCORE_REVIEW: The loan may soon be late.
  SCORE_DECLINE: The loan is about to be late.
  MODEL_UNAVAILABLE: The model gave no number.
  LATE: The loan is nearly late.
"""


class Product:
    """A repository with a trained regressor, and its answers to applications."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder
        self.spec = write_product(
            folder,
            spec_text=loans_product.SPEC,
            policy_text=POLICY,
            store_deadline_ms=2_000,
        )
        for path in folder.rglob("config.pbtxt"):
            text = path.read_text()
            for name in ("probabilities", "challenger_probabilities"):
                parts = text.split(f'"{name}"')
                text = f'"{name}"'.join(
                    [parts[0], *(one.replace("[ 2 ]", "[ 1 ]", 1) for one in parts[1:])]
                )
            path.write_text(text)
        self.features = self.of(loans_product.table(2_000))
        debt = np.nan_to_num(self.features[:, 1])
        days = 400 / (1 + debt / 2_000) + np.random.default_rng(0).exponential(5, 2_000)
        self.model = LGBMRegressor(
            n_estimators=80, objective="gamma", n_jobs=1, verbose=-1
        ).fit(self.features, days)
        write_converted(self.converted(self.model), folder / "loans_model" / "1")
        release_first(folder, self.spec)

    def of(self, rows: pl.DataFrame) -> np.ndarray:
        """Return the features of rows."""
        history = history_of(rows, spec=self.spec, source="loans")
        return build(self.spec, history).astype(np.float32)

    def converted(self, model: object) -> object:
        """Convert a model for the product."""
        sample = Sample(rows=self.features, names=self.spec.feature_names)
        return convert_model(
            model_of(model),
            origin="the model",
            purpose=purpose_of(self.repository, "loans"),
            sample=sample,
        )


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Product:
    """The product, trained and released."""
    return Product(tmp_path_factory.mktemp("loans") / "model_repository")


@pytest.fixture(scope="module")
def applications() -> pl.DataFrame:
    """Other rows than those of the training."""
    return loans_product.table(ROWS, seed=7)


def requests(rows: pl.DataFrame) -> dict[str, list[object]]:
    """Build requests for rows."""
    return {
        "transaction_id": [f"a{row}" for row in range(len(rows))],
        "event_time": [NOW_US + row for row in range(len(rows))],
        **{field: rows[field].to_list() for field in loans_product.FIELDS},
    }


def expected(product: Product, rows: pl.DataFrame) -> tuple[np.ndarray, list[str]]:
    """Return LightGBM's own numbers, and the decisions by plain comparison."""
    days = np.asarray(product.model.predict(product.of(rows)), np.float32)
    words = [
        "decline" if one <= 90 else "review" if one <= 160.5 else "approve"
        for one in days.astype(np.float64)
    ]
    assert set(words) == {"approve", "review", "decline"}
    return days, words


def test_the_repository_has_no_finding(product: Product) -> None:
    """One label, one number, one column in each configuration."""
    found = check(RepositorySnapshot(product.repository), product="loans")
    assert [str(one) for one in found] == []


def test_the_proof_judges_at_the_thresholds_of_the_policy(product: Product) -> None:
    """Each threshold stands for the next float32: up to it the decision holds."""
    report = product.converted(product.model).proven.report
    above = [
        float(np.nextafter(np.float32(one), np.float32(999))) for one in (90, 160.5)
    ]
    assert report.thresholds == (12.0, *above)
    assert (report.flips, report.max_delta) == (0, 0)


def test_the_local_engine_answers_the_number(
    product: Product, applications: pl.DataFrame
) -> None:
    """The score is the regressor's own float32."""
    days, words = expected(product, applications)
    with Engine.open(product.repository, product="loans") as engine:
        found = engine.decide(requests(applications), dry_run=True)
    assert found["score"].tolist() == days.tolist()
    assert found["decision"].tolist() == words


def test_a_server_answers_the_number(
    product: Product, applications: pl.DataFrame, tmp_path: Path
) -> None:
    """As the local engine does."""
    days, words = expected(product, applications)
    with (
        serve(product.repository, products=("loans",), state=tmp_path) as server,
        Client(
            server.grpc_url,
            product="loans",
            inputs=loans_product.INPUTS,
            fields=loans_product.FIELDS,
            timeout_s=20,
        ) as client,
    ):
        parts = list(client.decide_many(requests(applications)))
    assert [one for part in parts for one in part.score.tolist()] == days.tolist()
    assert [one for part in parts for one in part.decision.tolist()] == words


def test_a_model_of_a_number_is_published(product: Product, tmp_path: Path) -> None:
    """A server answers as the file does, and as LightGBM does on raw rows."""
    source, rows = tmp_path / "days.txt", tmp_path / "rows.parquet"
    product.model.booster_.save_model(source)
    names = list(product.spec.feature_names)
    pl.DataFrame(product.features, schema=names).write_parquet(rows)
    request = Conversion(
        source=source,
        sample=rows,
        columns=tuple(names),
        purpose=purpose_of(product.repository, "loans"),
    )
    folder = tmp_path / "converted"
    write_converted(convert_file(request), folder, made_from=made_from(request, folder))
    copy = shutil.copytree(product.repository, tmp_path / "repository")
    where = ("--product", "loans", "--repository", str(copy))
    done = CliRunner().invoke(app, ["publish", str(folder), *where])
    words = " ".join(done.output.split())
    assert done.exit_code == 0, words
    assert "served = source on 1,000 raw rows: largest difference" in words
    assert (copy / "loans_model" / "2" / "model.onnx").is_file()


def test_a_classifier_is_refused_for_a_policy_of_a_number(product: Product) -> None:
    """The message says what to write in policy.yaml."""
    label = product.features[:, 2] > 20
    model = LGBMClassifier(n_estimators=2, n_jobs=1, verbose=-1)
    with pytest.raises(InputError, match="policy reads a number: name the label"):
        product.converted(model.fit(product.features, label))


def test_a_replayed_number_may_differ_by_its_size() -> None:
    """At 200,000 by 2, at 0.5 by 0.00001; a probability by 0.00001."""
    was = np.array([[2e5], [2e5], [0.5], [0.5]], np.float32)
    now = np.array([[2e5 + 1.5], [2e5 + 3], [0.500005], [0.50002]], np.float32)
    assert near_rows(was, now, 1e-5).tolist() == [True, False, True, False]
    both = np.array([[0.5, 0.5]], np.float32)
    assert near_rows(both, both + np.float32(2e-5), 1e-5).tolist() == [False]

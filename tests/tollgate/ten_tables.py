"""
Ten tables of different kinds, and what plain scripts make of the same held-out rows.

    python tests/tollgate/ten_tables.py [NAME ...]

makes a product of each by `tollgate product new`, and prints its AUC next to those of a
plain histogram boosting and a plain logistic regression, which share no code with the
product: pandas and scikit-learn alone.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

LABEL = "bad"
DAY_US = 86_400_000_000
START_US = 1_700_000_000_000_000
MARGIN = 0.01  # of AUC, to the better of the two scripts

Columns = dict[str, Any]
F64 = npt.NDArray[np.float64]


class Table(NamedTuple):
    """A table's columns, and the options that a person would give with it."""

    columns: Columns
    options: Mapping[str, Any] = MappingProxyType({})


def outcome(random: np.random.Generator, logit: F64) -> list[int]:
    """Draw outcomes with a risk of 1 / (1 + exp(-logit))."""
    found: list[int] = (random.random(len(logit)) < 1 / (1 + np.exp(-logit))).tolist()
    return [int(one) for one in found]


def wide(random: np.random.Generator) -> Table:
    """220 numbers, of which 120 matter a little."""
    rows = np.round(random.normal(size=(6000, 220)), 2)
    weight = np.where(np.arange(220) < 120, random.normal(0, 0.25, 220), 0)
    columns: Columns = {f"n{at:03d}": rows[:, at].tolist() for at in range(220)}
    return Table(columns | {LABEL: outcome(random, rows @ weight)})


def rare(random: np.random.Generator) -> Table:
    """One positive row in a thousand; one column nearly determines the outcome."""
    count = 60_000
    bad = random.random(count) < 0.001
    columns: Columns = {
        "signal": np.round(random.normal(size=count) + 2.8 * bad, 3).tolist(),
        "helps": np.round(random.normal(size=count) + 0.8 * bad, 3).tolist(),
    }
    for at in range(12):
        columns[f"noise_{at}"] = np.round(random.normal(size=count), 3).tolist()
    return Table(columns | {LABEL: bad.astype(int).tolist()})


def codes(random: np.random.Generator) -> Table:
    """180 codes, each with a risk of its own, and another 40."""
    count = 12_000
    code, shop = random.integers(0, 180, count), random.integers(0, 40, count)
    x = np.round(random.normal(size=count), 3)
    logit = random.normal(0, 2, 180)[code] + random.normal(0, 1, 40)[shop] + x - 1
    columns = {
        "code": [f"mcc{one:04d}x" for one in code * 37],
        "shop": [f"shop {one}" for one in shop],
        "x": x.tolist(),
    }
    return Table(columns | {LABEL: outcome(random, logit)})


def ordered(random: np.random.Generator) -> Table:
    """Words with an order that the alphabet does not have."""
    count = 5000
    words = ["tiny", "small", "medium", "large", "huge"]
    size, grade = random.integers(0, 5, count), random.integers(0, 4, count)
    x = np.round(random.normal(size=count), 2)
    columns = {
        "size": [words[one] for one in size],
        "grade": [["poor", "fair", "good", "best"][one] for one in grade],
        "x": x.tolist(),
    }
    logit = 0.9 * size - 0.7 * grade + 0.5 * x - 1
    return Table(columns | {LABEL: outcome(random, logit)})


def decimals(random: np.random.Generator) -> Table:
    """Twelve decimals, numbers of a billionth and of a billion."""
    count = 6000
    share, tiny = random.random(count), random.normal(size=count)
    huge = random.lognormal(0, 1, count)
    columns = {
        "share": [round(float(one), 12) for one in share],
        "tiny": (tiny * 1e-9).tolist(),
        "huge": [round(float(one) * 1e9, 3) for one in huge],
        "x": random.normal(size=count).tolist(),
    }
    logit = 4 * (share - 0.5) + tiny + 0.8 * np.log(huge)
    return Table(columns | {LABEL: outcome(random, logit)})


def busy(random: np.random.Generator) -> Table:
    """Entities with some hundred events each, below the cap; bursts are risky."""
    count, days = 16_000, 100
    card = random.integers(0, 100, count)
    burst = random.random(count) < 0.15
    # Events of a burst fall on one of a few days of their card.
    day = np.where(burst, (card * 7 + 31 * random.integers(0, 4, count)) % days, 0)
    day = np.where(burst, day, random.integers(0, days, count))
    when = day * DAY_US + random.integers(0, DAY_US, count) + START_US
    cents = np.rint(random.lognormal(3, 1, count) * 100)
    logit = 1.5 * burst + 0.8 * np.log(cents / 100) - 4
    columns = {
        "card": [f"card-{one}" for one in card],
        "when": [int(one) for one in when],
        "cents": [float(one) / 100 for one in cents],
        "channel": random.choice(["web", "app"], count).tolist(),
    }
    options = {"entities": ("card",), "time": "when", "amount": "cents"}
    return Table(columns | {LABEL: outcome(random, logit)}, options)


def drift(random: np.random.Generator) -> Table:
    """The informative values drift with time; the held-out rows are the last ones."""
    count = 8000
    when = np.sort(random.integers(0, 200 * DAY_US, count)) + START_US
    age = np.linspace(0, 1, count)
    x, z = random.normal(size=count), random.normal(size=count)
    logit = (1.5 - age) * x + (0.5 + age) * z + age - 1
    columns = {
        "when": [int(one) for one in when],
        "x": np.round(x + 0.5 * age, 3).tolist(),
        "z": np.round(z, 3).tolist(),
        "plan": random.choice(["a", "b", "c"], count).tolist(),
    }
    return Table(columns | {LABEL: outcome(random, logit)}, {"time": "when"})


def texts(random: np.random.Generator) -> Table:
    """Words of other scripts, quotes, commas, blanks, and some that are very long."""
    count = 5000
    words = [
        *(
            "Ünïcode",
            "日本 銀行",
            "a,b",
            'say "x"',
            " lead",
            "trail ",
            "null?",
            "naïve",
        ),
        *("{x: 1}", "#tag", "- item", "'q'", "emoji 🙂", "tab\tinside", "yes", "~"),
    ]
    word, kind = random.integers(0, len(words), count), random.integers(0, 3, count)
    long = random.random(count) < 0.01
    risk = random.normal(0, 1.2, len(words))
    x = np.round(random.normal(size=count), 2)
    columns = {
        "merchant name": [
            "very long " * 20 if far else words[one]
            for far, one in zip(long.tolist(), word.tolist(), strict=True)
        ],
        "Größe": [["klein", "groß", "größer"][one] for one in kind],
        "x": x.tolist(),
    }
    logit = risk[word] + 0.6 * kind + x - 1
    return Table(columns | {LABEL: outcome(random, logit)})


def mixed(random: np.random.Generator) -> Table:
    """Truths, and whole numbers that are codes with no order, a third missing."""
    count = 8000
    region, flag = random.integers(0, 25, count), random.random(count) < 0.4
    x, z = random.normal(size=count), random.normal(size=count)
    logit = random.normal(0, 1.3, 25)[region] + 1.1 * flag + x + 0.7 * z - 1
    gone = random.random((count, 2)) < 0.35
    columns = {
        "region": [int(one) for one in region],
        "flag": flag.tolist(),
        "x": [
            None if g else round(float(v), 3)
            for v, g in zip(x, gone[:, 0], strict=True)
        ],
        "z": [
            None if g else round(float(v), 3)
            for v, g in zip(z, gone[:, 1], strict=True)
        ],
    }
    return Table(columns | {LABEL: outcome(random, logit)})


def tiny(random: np.random.Generator) -> Table:
    """600 rows, and nothing but a straight line to find."""
    rows = np.round(random.normal(size=(600, 10)), 2)
    weight = random.normal(0, 0.7, 10)
    columns: Columns = {f"f_{at}": rows[:, at].tolist() for at in range(10)}
    return Table(columns | {LABEL: outcome(random, rows @ weight)})


TABLES: dict[str, Callable[[np.random.Generator], Table]] = {
    one.__name__: one
    for one in (
        wide,
        rare,
        codes,
        ordered,
        decimals,
        busy,
        drift,
        texts,
        mixed,
        tiny,
    )
}


def made(name: str, *, seed: int = 11) -> Table:
    """Make one of the tables; the same name and seed give the same rows."""
    return TABLES[name](np.random.default_rng([seed, *name.encode()]))


def served_rows(table: Table) -> pd.DataFrame:
    """Leave out rows with a text of more than 128 bytes, which no request may have."""
    frame = pd.DataFrame(table.columns)
    good = np.ones(len(frame), np.bool_)
    for name in frame:
        for row, value in enumerate(frame[name]):
            good[row] &= not isinstance(value, str) or len(value.encode()) <= 128
    return frame[good].reset_index(drop=True)


def plain_aucs(table: Table, test: npt.NDArray[np.bool_]) -> dict[str, float]:
    """Train two plain scripts on the rows that are not held out; AUC of each."""
    frame = served_rows(table)
    label = frame.pop(LABEL).to_numpy()
    taken = {*table.options.get("entities", ()), table.options.get("time")}
    frame = frame.drop(columns=[one for one in frame if one in taken])
    for name in frame:
        if not pd.api.types.is_numeric_dtype(frame[name]):
            frame[name] = frame[name].astype("category")
        elif frame[name].dtype == bool:
            frame[name] = frame[name].astype(float)
    words = make_column_selector(dtype_include="category")
    numbers = make_column_selector(dtype_exclude="category")
    logistic = make_pipeline(
        make_column_transformer(
            (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
            (OneHotEncoder(handle_unknown="ignore"), words),
        ),
        LogisticRegression(max_iter=1000),
    )
    scripts = {
        "boosting": HistGradientBoostingClassifier(random_state=0),
        "logistic": logistic,
    }
    return {
        name: float(
            roc_auc_score(
                label[test],
                script.fit(frame[~test], label[~test]).predict_proba(frame[test])[:, 1],
            )
        )
        for name, script in scripts.items()
    }


def held_out_rows(table: Table) -> npt.NDArray[np.bool_]:
    """Return the rows that `product new` judges on, so that scripts use the same."""
    from tollgate.product.splitting import held_out

    frame = served_rows(table)
    label = frame[LABEL].to_numpy(np.int8)
    when = table.options.get("time")
    times = frame[when] if when else np.zeros(len(label))
    return held_out(label, time_us=np.asarray(times, np.int64))


def product_auc(table: Table, folder: Path) -> tuple[float, list[str]]:
    """Make a product of a table for real; its AUC, and each step that was reported."""
    from tollgate.product.choices import ProductChoices
    from tollgate.product.creation import create_product
    from tollgate.product.plan import make_plan

    pl.DataFrame(table.columns).write_parquet(folder / "table.parquet")
    (folder / "models").mkdir()
    choices = ProductChoices(
        product="shop", table=folder / "table.parquet", label=LABEL, **table.options
    )
    said: list[str] = []
    done = create_product(
        make_plan(choices),
        repository=folder / "models",
        model=None,
        kind="auto",
        report=lambda title, text: said.append(f"{title}: {text}"),
    )
    return done.auc, said


def main() -> None:
    """Print a line for each table; status 1 where a product is worse than allowed."""
    worse = []
    print(
        f"{'table':10}{'product':>9}{'boosting':>10}{'logistic':>10}{'behind':>9}{'s':>5}"
    )
    for name in sys.argv[1:] or TABLES:
        since = time.monotonic()
        table = made(name)
        with tempfile.TemporaryDirectory(prefix="tollgate-") as folder:
            auc, said = product_auc(table, Path(folder))
        plain = plain_aucs(table, held_out_rows(table))
        behind = max(plain.values()) - auc
        line = f"{name:10}{auc:9.4f}{plain['boosting']:10.4f}{plain['logistic']:10.4f}"
        print(f"{line}{behind:9.4f}{time.monotonic() - since:5.0f}", flush=True)
        for one in said:
            if one.startswith(("served", "model", "warning")):
                print(f"    {one}", flush=True)
        if behind > MARGIN:
            worse.append(name)
    if worse:
        sys.exit(f"worse by more than {MARGIN}: {', '.join(worse)}")


if __name__ == "__main__":
    main()

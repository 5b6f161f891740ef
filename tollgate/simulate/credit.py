"""
Simulate applications for an instalment loan, and which of them were not repaid.

The table has the usual form: numbers with gaps, categories, an outcome, and separately
the attributes that no lender may decide by. These attributes are drawn first, and
income, employment and history depend on them as they do among people. So a model that
never sees them still errs more often in one group than in another: the model card must
show this.
"""

from __future__ import annotations

import datetime

import numpy as np
import numpy.typing as npt
import polars as pl

from tollgate.errors import InputError

SENSITIVE = ("sex", "age", "marital_status", "nationality")
MOST_ROWS = 1_000_000
_START = datetime.datetime(2024, 1, 1)
_MINUTES_APART = 40

F64 = npt.NDArray[np.float64]
Words = npt.NDArray[np.str_]


def simulate_credit(*, rows: int = 20_000, seed: int = 0) -> pl.DataFrame:
    """
    Simulate applications; the same arguments give the same frame.

    Args:
        rows: Number of applications, 1 to a million.
        seed: Seed of the whole simulation, at least 0.

    Returns:
        One row per application, in the order of time: transaction_id ("A000001"),
        event_time (µs, UTC, without a zone), amount and the fields of the credit
        product as a request brings them (null where one was not stated), label (1: not
        repaid), and the attributes that are no inputs: sex, age, marital_status,
        nationality.

    Raises:
        InputError: An argument is out of range.
    """
    if not 1 <= rows <= MOST_ROWS:
        raise InputError("rows", f"{rows} is not within 1 … {MOST_ROWS:,}")
    if seed < 0:
        raise InputError("seed", f"{seed} is below 0")
    random = np.random.default_rng([seed, 2])
    people = _people(random, rows)
    means = _means(random, people)
    history = _history(random, people)
    loan = _loan(random, means["income"])
    columns = {**loan, **means, **history}
    label = random.random(rows) < _probability(columns, random)
    stated = _with_gaps(random, columns)
    times = [
        _START + datetime.timedelta(minutes=_MINUTES_APART * n) for n in range(rows)
    ]
    return pl.DataFrame(
        {
            "transaction_id": [f"A{number:06}" for number in range(1, rows + 1)],
            "event_time": times,
            **stated,
            "label": label.astype(np.int8),
            **people,
        }
    )


def _people(
    random: np.random.Generator, rows: int
) -> dict[str, npt.NDArray[np.generic]]:
    """Draw the attributes that no lender may decide by."""
    age = np.clip(np.rint(18 + random.gamma(2.6, 9.5, rows)), 18, 85).astype(np.int16)
    marital = np.where(
        random.random(rows) < np.clip((age - 18) / 35, 0.05, 0.75),
        _pick(random, rows, {"married": 0.8, "divorced": 0.15, "widowed": 0.05}),
        "single",
    )
    return {
        "sex": _pick(random, rows, {"female": 0.49, "male": 0.51}),
        "age": age,
        "marital_status": marital,
        "nationality": _pick(random, rows, {"domestic": 0.86, "foreign": 0.14}),
    }


def _means(
    random: np.random.Generator, people: dict[str, npt.NDArray[np.generic]]
) -> dict[str, npt.NDArray[np.generic]]:
    """Draw employment, income, obligations, housing and savings."""
    age = people["age"].astype(np.float64)
    rows = len(age)
    foreign = people["nationality"] == "foreign"
    kinds = {"permanent": 0.64, "temporary": 0.14, "self_employed": 0.15, "none": 0.07}
    employment = np.where(
        foreign, _pick(random, rows, {**kinds, "temporary": 0.34}), ""
    )
    employment = np.where(employment == "", _pick(random, rows, kinds), employment)
    employment = np.where(
        (age >= 64) & (random.random(rows) < 0.9), "retired", employment
    )
    working = ~np.isin(employment, ["retired", "none"])
    years = np.where(working, (age - 18) * random.beta(1.2, 2.5, rows), np.nan)
    level = 7.75 + 0.012 * np.minimum(age - 18, 30) + random.normal(0, 0.42, rows)
    level -= 0.14 * (people["sex"] == "female") + 0.1 * foreign
    level -= np.select([employment == "none", employment == "retired"], [0.8, 0.3], 0.0)
    income = np.exp(level)
    renting = np.clip(0.75 - 0.011 * (age - 18), 0.2, None)
    owned = np.where(random.random(rows) < np.clip((age - 30) / 60, 0, 0.6), 1, 0)
    home = np.where(
        random.random(rows) < renting,
        np.where((age < 26) & (random.random(rows) < 0.4), "family", "rented"),
        np.where(owned == 1, "owned", "mortgaged"),
    )
    wealth = level - 7.9 + 0.015 * (age - 40) + random.normal(0, 0.8, rows)
    steps = np.digitize(wealth, [-0.6, 0.2, 1.1])
    savings = np.array(["none", "under_1000", "under_10000", "from_10000"])[steps]
    return {
        "income": np.round(income, 2),
        "debt_payments": np.round(income * random.beta(1.3, 6, rows), 2),
        "employment_years": np.round(years, 1),
        "employment": employment,
        "home": home,
        "savings": savings,
    }


def _history(
    random: np.random.Generator, people: dict[str, npt.NDArray[np.generic]]
) -> dict[str, F64]:
    """Draw the records of a credit bureau; NaN without a file, or without cards."""
    age = people["age"].astype(np.float64)
    rows = len(age)
    none = random.random(rows) < 0.05 + 0.2 * (people["nationality"] == "foreign")
    no_card = none | (random.random(rows) < 0.15)
    years = (age - 18) * random.beta(2, 1.6, rows)
    found = {
        "credit_years": np.where(none, np.nan, np.round(years, 1)),
        "utilization": np.where(
            no_card, np.nan, np.round(random.beta(1.1, 1.7, rows), 3)
        ),
        "delinquencies": random.negative_binomial(0.35, 0.45, rows).astype(np.float64),
        "inquiries": random.poisson(0.9, rows).astype(np.float64),
    }
    for name in ("delinquencies", "inquiries"):
        found[name][none] = np.nan
    return found


def _loan(
    random: np.random.Generator, income: npt.NDArray[np.generic]
) -> dict[str, npt.NDArray[np.generic]]:
    """Draw the requested loan."""
    rows = len(income)
    size = np.exp(8.6 + 0.5 * np.log(income.astype(np.float64) / 2800))
    amount = np.clip(size * np.exp(random.normal(0, 0.75, rows)), 500, 75_000)
    term = np.array([12, 24, 36, 48, 60, 84])[
        np.clip(
            np.digitize(amount, [1500, 4000, 9000, 15_000, 30_000])
            + random.integers(-1, 2, rows),
            0,
            5,
        )
    ]
    purposes = {"car": 0.29, "home": 0.17, "debts": 0.22, "education": 0.07}
    purposes |= {"medical": 0.05, "business": 0.08, "other": 0.12}
    return {
        "amount": np.round(amount, -2),
        "term_months": term.astype(np.float64),
        "purpose": _pick(random, rows, purposes),
    }


def _probability(
    columns: dict[str, npt.NDArray[np.generic]], random: np.random.Generator
) -> F64:
    """Return the probability of default, from true values whether stated or not."""
    known = {
        name: np.nan_to_num(values.astype(np.float64))
        for name, values in columns.items()
        if values.dtype.kind == "f"
    }
    income = known["income"]
    instalment = known["amount"] / known["term_months"] * 1.15
    burden = (instalment + known["debt_payments"]) / income
    no_file = np.isnan(columns["credit_years"].astype(np.float64))
    margin = -3.85 + 3.2 * burden - 0.35 * np.log(income / 2800)
    margin += 1.1 * known["utilization"] ** 2 + 0.6 * np.sqrt(known["delinquencies"])
    margin += 0.16 * known["inquiries"] + 0.5 * no_file
    margin -= 0.035 * np.minimum(known["credit_years"], 20)
    margin -= 0.05 * np.minimum(known["employment_years"], 10)
    for name, moved in _MOVES.items():
        for word, by in moved.items():
            margin += by * (columns[name] == word)
    margin += random.normal(0, 0.35, len(margin))  # factors that no form asks about
    found: F64 = 1 / (1 + np.exp(-margin))
    return found


_MOVES = {
    "employment": {"temporary": 0.45, "self_employed": 0.25, "none": 0.9},
    "home": {"rented": 0.3, "family": 0.15, "owned": -0.25},
    "savings": {"none": 0.55, "under_1000": 0.25, "from_10000": -0.45},
    "purpose": {"business": 0.45, "debts": 0.3, "medical": 0.2, "home": -0.2},
}
# Share of applications that do not state the field.
_GAPS = {"income": 0.02, "debt_payments": 0.04, "savings": 0.12, "home": 0.01}


def _with_gaps(
    random: np.random.Generator, columns: dict[str, npt.NDArray[np.generic]]
) -> dict[str, pl.Series]:
    """Remove values that some applications do not state; NaN becomes null."""
    found = {}
    for name, values in columns.items():
        gap = random.random(len(values)) < _GAPS.get(name, 0.0)
        series = (
            pl.Series(name, values).fill_nan(None)
            if values.dtype.kind == "f"
            else (pl.Series(name, values.tolist()))
        )
        found[name] = series.set(pl.Series(gap), None)
    return found


def _pick(random: np.random.Generator, rows: int, shares: dict[str, float]) -> Words:
    """Draw words with given weights, which need not add up to 1."""
    share = np.array(list(shares.values()))
    found: Words = random.choice(list(shares), rows, p=share / share.sum())
    return found

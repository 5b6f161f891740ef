"""A pickle of NumPy 2 converts in its own environment, and is proven against that."""

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from converters.parity.proof import prove
from converters.parity.runner import onnx_runner
from converters.parity.target_runtime import NUMPY, cache_folder
from converters.sources.opening import open_source
from tollgate.errors import TollgateError
from tollgate.server.address import find_server

HOUSE = Path(__file__).parents[2]
CLI = [sys.executable, "-c", "from tollgate.cli import main; main()"]
PACKAGES = ("scikit-learn", "xgboost-cpu", "lightgbm", "pandas")

TRAINING = """
import sys, pickle, joblib
import numpy as np
import pandas as pd
from lightgbm import LGBMClassifier
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import (
    GradientBoostingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from xgboost import XGBClassifier, XGBRegressor

assert np.__version__.startswith("2.")
random = np.random.default_rng(0)
rows = random.normal(size=(600, 4)).astype(np.float32)
label = (rows[:, 0] + rows[:, 1] * rows[:, 2] > 0.2).astype(int)
state = np.random.RandomState(np.random.PCG64(1))
models = {
    "forest": RandomForestClassifier(12, random_state=state),
    "boosting": GradientBoostingClassifier(n_estimators=12, random_state=state),
    "histograms": HistGradientBoostingClassifier(max_iter=12, random_state=state),
    "logistic": make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()),
    "calibrated": CalibratedClassifierCV(
        RandomForestClassifier(8, max_depth=5, random_state=state), cv=3
    ),
    "xgboost": XGBClassifier(n_estimators=12, n_jobs=1),
    "regressor": XGBRegressor(n_estimators=12, n_jobs=1, objective="reg:logistic"),
    "lightgbm": LGBMClassifier(n_estimators=12, n_jobs=1, verbose=-1),
}
for name, model in models.items():
    model.fit(rows, label)
    joblib.dump(model, name + ".pkl")
    if name == "regressor":
        second = model.predict(rows)
        answers = np.stack([1 - second, second], axis=1)
    else:
        answers = model.predict_proba(rows)
    np.savez(name + ".npz", rows=rows, answers=answers)


def table(count, words, seed):
    random = np.random.default_rng(seed)
    return pd.DataFrame({
        "income": random.normal(50, 20, count).astype(np.float32),
        "purpose": random.choice(words, count),
        "channel": random.choice(["web", "app", None], count),
        "size": random.choice(["small", "medium", "large"], count),
    })


known = table(900, ["travel", "car", "home", "zebra"], 1)
seen = (known.purpose == "travel") + (known["size"] == "large") - known.income / 60
label = (seen + (known.channel == "web") * 0.4 + random.normal(size=900) > 0.3)
text = ["purpose", "channel", "size"]
encoders = {
    "onehot-ignore": OneHotEncoder(handle_unknown="ignore"),
    "onehot-error": OneHotEncoder(),
    "onehot-drop": OneHotEncoder(handle_unknown="ignore", drop="first"),
    "onehot-rare": OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=250
    ),
    "onehot-imputed": make_pipeline(
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(handle_unknown="ignore"),
    ),
    "ordinal": OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    "ordinal-ordered": OrdinalEncoder(
        categories=[
            ["zebra", "home", "travel", "car"],
            ["web", "app", np.nan],
            ["small", "medium", "large"],
        ],
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=-2,
    ),
}
fresh = table(200, ["travel", "car", "home", "zebra", "boat"], 2)
fresh.to_csv("fresh.csv", index=False)
known.to_csv("known.csv", index=False)
known, fresh = pd.read_csv("known.csv"), pd.read_csv("fresh.csv")
for name, encoder in encoders.items():
    last = (
        HistGradientBoostingClassifier(max_iter=12, random_state=0)
        if name.startswith("ordinal")
        else LogisticRegression(max_iter=500)
    )
    columns = ColumnTransformer(
        [("numbers", StandardScaler(), ["income"]), ("words", encoder, text)]
    )
    model = make_pipeline(columns, last).fit(known, label.astype(int))
    joblib.dump(model, name + ".pkl")
    answers = np.full((len(fresh), 2), np.nan)
    for at in range(len(fresh)):
        try:
            answers[at] = model.predict_proba(fresh.iloc[at : at + 1])[0]
        except ValueError:  # an unknown word, where the encoder refuses it
            pass
    np.save(name + ".npy", answers)


class Mine(LogisticRegression):
    pass


pickle.dump(Mine().fit(rows, rows[:, 0] > 0), open("mine.pkl", "wb"))
"""


@pytest.fixture(scope="session")
def python():
    """Return the Python of an environment with NumPy 2, made once per machine."""
    pins = {
        line.partition("==")[0]: line.partition(" ;")[0]
        for line in (HOUSE / "constraints.txt").read_text().splitlines()
        if "==" in line and _holds(line)
    }
    wanted = [NUMPY, *(pins[name] for name in PACKAGES)]
    mark = re.sub(r"\W+", "-", "_".join([*wanted, platform.python_version()]))
    folder = cache_folder().parent / "tests" / mark
    found = folder / "bin" / "python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if found.exists():
            return found
        aside = folder.with_name("new")
        shutil.rmtree(aside, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", aside], check=True)
        command = [aside / "bin" / "python", "-m", "pip", "install", "--quiet"]
        done = subprocess.run(
            [*command, "--only-binary", ":all:", *wanted],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            said = f"pip installs no environment with NumPy 2: {done.stderr[-300:]}"
            if os.environ.get("CI") == "true" or "from versions: none" not in said:
                pytest.fail(said)
            pytest.skip(said)
        aside.rename(folder)
    return found


def _holds(pin):
    """Return whether a line of constraints.txt is for this Python."""
    from packaging.markers import Marker

    marker = pin.partition(" ; ")[2]
    return not marker or Marker(marker).evaluate()


@pytest.fixture(scope="module")
def trained(python, tmp_path_factory):
    """Train models in that environment; return the folder with what they answer."""
    folder = tmp_path_factory.mktemp("trained")
    script = folder / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    done = subprocess.run(
        [python, "-I", "-W", "ignore", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def refused(path, **options):
    """Return the line with which a file is refused."""
    with (
        pytest.raises(TollgateError) as caught,
        open_source(path, trust_pickle=True, **options),
    ):
        pass
    assert caught.value.exit_status == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", ["forest", "boosting", "histograms"])
def test_our_numpy_cannot_load_them(trained, name):
    """The line names what the pickle records, and the option."""
    line = refused(trained / f"{name}.pkl")
    assert "is not a known BitGenerator module" in line
    assert "and NumPy 2), name that one's Python" in line
    assert "(it records scikit-learn 1." in line


@pytest.mark.parametrize(
    "name",
    [
        *("forest", "boosting", "histograms", "logistic", "calibrated"),
        *("xgboost", "regressor", "lightgbm"),
    ],
)
def test_a_pickle_of_numpy_2_answers_as_in_its_own_process(trained, python, name):
    """What the environment printed is what the converted model answers."""
    path = trained / f"{name}.pkl"
    with open_source(path, trust_pickle=True, python=python) as source:
        assert source.facts.classes == (0, 1)
        proven = prove(source, samples=None, thresholds=(0.5,))
    proven.check()
    known = np.load(trained / f"{name}.npz")
    found = onnx_runner(proven.model)(known["rows"])
    np.testing.assert_allclose(found, known["answers"], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        *("onehot-ignore", "onehot-error", "onehot-drop", "onehot-rare"),
        *("onehot-imputed", "ordinal", "ordinal-ordered"),
    ],
)
def test_words_are_the_codes_of_the_models_own_order(trained, python, name):
    """Raw rows with words, none and unseen ones, as the estimator answered them."""
    with open_source(
        trained / f"{name}.pkl", trust_pickle=True, python=python
    ) as source:
        facts = source.facts
        proven = prove(source, samples=None, thresholds=(0.5,))
    proven.check()
    words = {facts.names[at]: one for at, one in facts.categories.items()}
    assert set(words) == {"purpose", "channel", "size"}
    if name == "ordinal-ordered":
        assert words["purpose"].known == ("zebra", "home", "travel", "car")
    lines = [line.split(",") for line in (trained / "fresh.csv").read_text().split()]
    rows = np.array(
        [
            [
                _code(cell, words[column]) if column in words else float(cell)
                for column, cell in zip(lines[0], line, strict=True)
            ]
            for line in lines[1:]
        ],
        np.float32,
    )
    answers = np.load(trained / f"{name}.npy")
    refusing = np.isnan(answers[:, 0])
    assert refusing.any() == (name == "onehot-error")
    found = onnx_runner(proven.model)(rows)
    np.testing.assert_allclose(found[~refusing], answers[~refusing], rtol=0, atol=1e-6)
    assert np.isnan(found[refusing]).all()


def _code(cell, vocabulary):
    """Write a word as features.yaml says: -1 without one, -2 for an unseen one."""
    assert vocabulary.codes
    if not cell:
        return -1
    return vocabulary.known.index(cell) if cell in vocabulary.known else -2


def test_code_of_its_user_is_not_carried_over(trained, python):
    """A class of the training script is named, not guessed."""
    line = refused(trained / "mine.pkl", python=python)
    assert "Can't get attribute 'Mine'" in line


def test_a_library_that_the_environment_lacks_is_named(trained, tmp_path):
    """With the command that installs it, and nothing is converted."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    line = refused(trained / "forest.pkl", python=bare / "bin" / "python")
    assert f"needs 'joblib', which {bare}/bin/python lacks" in line


def test_a_python_that_is_none_is_named(trained, tmp_path):
    """No such file."""
    line = refused(trained / "forest.pkl", python=tmp_path / "python")
    assert line == (
        f"{tmp_path}/python: cannot be started: No such file or directory; "
        "name a Python"
    )


SHOP = """
import sys
import joblib
import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler


def table(count, words, seed):
    random = np.random.default_rng(seed)
    return pd.DataFrame({
        "income": random.normal(50, 20, count).round(3),
        "purpose": random.choice(words, count),
        "size": random.choice(["small", "medium", "large"], count),
    })


known = table(1200, ["travel", "car", "home", "zebra"], 0)
margin = (known.purpose == "travel") + (known["size"] == "large") - known.income / 50
noise = np.random.default_rng(1).normal(size=1200) * 0.4
known["bad"] = (margin + noise > 0).astype(int)
known.to_csv("known.csv", index=False)
unknown = dict(handle_unknown="use_encoded_value", unknown_value=-1)
columns = ColumnTransformer([
    ("number", StandardScaler(), ["income"]),
    ("one", OneHotEncoder(handle_unknown="ignore"), ["purpose"]),
    ("order", OrdinalEncoder(categories=[["small", "medium", "large"]], **unknown),
     ["size"]),
])
state = np.random.RandomState(np.random.PCG64(3))
model = make_pipeline(columns, RandomForestClassifier(12, max_depth=5,
                                                      random_state=state))
model.fit(known[["income", "purpose", "size"]], known.bad)
joblib.dump(model, "model.pkl")
fresh = table(64, ["travel", "car", "home", "zebra", "boat"], 5)
fresh.insert(0, "transaction_id", [f"r{at}" for at in range(64)])
fresh.insert(1, "event_time", "2025-03-04T10:00:00")
fresh.to_csv("fresh.csv", index=False)
np.save("fresh.npy", model.predict_proba(fresh[["income", "purpose", "size"]])[:, 1])
"""


@pytest.mark.slow
def test_words_are_served_as_the_estimator_answers_them(python, tmp_path, monkeypatch):
    """From a pickle of NumPy 2 and a table of words to decisions, by commands."""
    monkeypatch.setenv("TOLLGATE_PRODUCT", "shop")
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "model_repository").mkdir()
    subprocess.run([python, "-I", "-W", "ignore", "shop.py"], cwd=tmp_path, check=True)
    new = "product new shop --from known.csv --label bad --model model.pkl --yes"
    command(tmp_path, *new.split(), "--trust-pickle", f"--python={python}")
    ports = ("--grpc-port=0", "--metrics-port=0", "--side-port=0")
    with (tmp_path / "log").open("w") as log:
        up = subprocess.Popen(
            [*CLI, "up", "--product=shop", *ports], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        while (server := find_server(tmp_path / ".tollgate")) is None:
            assert up.poll() is None, (tmp_path / "log").read_text()[-2000:]
            time.sleep(0.1)
        score = ("score", "fresh.csv", "--out=scored.parquet")
        command(tmp_path, *score, f"--url={server.grpc_url}")
    finally:
        up.terminate()
        up.wait()
    found = pl.read_parquet(tmp_path / "scored.parquet")
    assert found["error"].str.len_chars().sum() == 0
    expected = np.load(tmp_path / "fresh.npy")
    assert np.ptp(expected) > 0.5
    np.testing.assert_allclose(found["score"].to_numpy(), expected, rtol=0, atol=1e-6)


def command(folder, *words):
    """Run the command line in a folder; it must succeed."""
    done = subprocess.run(
        [*CLI, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]

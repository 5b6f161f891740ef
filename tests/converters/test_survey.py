"""Models made by others convert with parity, or are refused for a stated reason."""

from converters.survey import survey, table


def test_every_model_of_others_converts_or_is_refused_in_words(shared_data):
    """The table has a row per model; converted ones meet predictions of their time."""
    rows = list(survey(shared_data / "models"))
    assert len(rows) == 34
    found = {row.file.rpartition("/")[2]: row for row in rows}
    for row in rows:
        assert row.converted or row.outcome.startswith("refused: "), row
        assert "does not answer as its source" not in row.outcome, row
    for name in (
        "lg_breast_cancer.txt",
        "lg_dart_breast_cancer.model",
        "lg_kddcup99.model",
        "lgmulticlass.model",
        "docs__examples__lightgbm__iris-lightgbm.bst",
        "docs__examples__xgboost__mushroom-xgboost.json",
    ):
        assert found[name].converted, found[name]
    for name in (
        "lg_dart_breast_cancer.model",
        "lg_kddcup99.model",
        "genlin_fmtp_gamma_AvgClaimAmount.model",
        "genlin_fmtp_poisson_Frequency.model",
        "genlin_fmtp_tweedie_PurePremium.model",
    ):
        assert found[name].expected_delta < 1e-5
    # Its predictions were made on float64 rows, some of which float32 moves.
    assert 1e-3 < found["lgmulticlass.model"].expected_delta < 1e-2
    assert "XGBoost's old binary format" in found["mushroom.model"].outcome
    assert table(rows).count("\n") == len(rows) + 1

"""A product's folders enter and leave a repository all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import InputError, RepositoryError
from tollgate.product.placement import displace, folders_of, place, require_free

NAMES = ["shop", "shop_decision", "shop_features", "shop_model"]


def ensemble(name: str, *steps: str) -> str:
    """Write the configuration of an ensemble of steps."""
    inside = ", ".join(f'{{ model_name: "{one}" model_version: -1 }}' for one in steps)
    return (
        f'name: "{name}" platform: "ensemble" ensemble_scheduling {{ step [{inside}] }}'
    )


@pytest.fixture
def staged(tmp_path: Path) -> Path:
    """Return the staging folder of a product next to an empty repository."""
    (tmp_path / "models").mkdir()
    for name in NAMES:
        (tmp_path / "staged" / name / "1").mkdir(parents=True)
        text = ensemble(name, *NAMES[1:]) if name == "shop" else f'name: "{name}"'
        (tmp_path / "staged" / name / "config.pbtxt").write_text(text)
    return tmp_path / "staged"


def there(folder: Path) -> list[str]:
    """List a folder."""
    return sorted(path.name for path in folder.iterdir())


def test_product_is_placed_and_removed(staged: Path, tmp_path: Path) -> None:
    """No other folder changes."""
    models, away = tmp_path / "models", tmp_path / "away"
    (models / "other").mkdir()
    away.mkdir()
    place(staged, repository=models, product="shop")
    assert there(models) == ["other", *NAMES]
    assert folders_of(models, "shop")[0] == "shop"
    displace(models, folders_of(models, "shop"), into=away)
    assert there(models) == ["other"]


@pytest.mark.parametrize("taken", NAMES)
def test_existing_folder_stays_and_nothing_is_placed(
    staged: Path, tmp_path: Path, taken: str
) -> None:
    """Also if it appeared last: the folders that were placed are removed."""
    models = tmp_path / "models"
    (models / taken).mkdir()
    with pytest.raises(RepositoryError, match="there already"):
        place(staged, repository=models, product="shop")
    assert there(models) == [taken]
    assert there(staged) == NAMES
    with pytest.raises(RepositoryError, match="tollgate product remove shop"):
        require_free(models, "shop")


def test_failed_removal_restores_all_folders(staged: Path, tmp_path: Path) -> None:
    """The last folder cannot be moved, so the first three are restored."""
    models, away = tmp_path / "models", tmp_path / "away"
    place(staged, repository=models, product="shop")
    (away / "shop_decision").mkdir(parents=True)
    with pytest.raises(RepositoryError, match="cannot be moved"):
        displace(models, folders_of(models, "shop"), into=away)
    assert there(models) == NAMES


def test_steps_of_another_ensemble_stay(staged: Path, tmp_path: Path) -> None:
    """A step that two ensembles call belongs to neither alone."""
    models = tmp_path / "models"
    place(staged, repository=models, product="shop")
    (models / "twin").mkdir()
    (models / "twin" / "config.pbtxt").write_text(ensemble("twin", "shop_features"))
    assert folders_of(models, "shop") == ["shop", "shop_decision", "shop_model"]


def test_remainder_of_an_interrupted_removal_is_found(
    staged: Path, tmp_path: Path
) -> None:
    """The ensemble is removed first; its steps are found by their names."""
    models = tmp_path / "models"
    (staged / "shop_model").rename(models / "shop_model")
    assert folders_of(models, "shop") == ["shop_model"]
    with pytest.raises(RepositoryError, match="has no product 'cafe'"):
        folders_of(models, "cafe")


@pytest.mark.parametrize("name", ["", "Shop", "a-b", "1a", "a" * 41, "../a", "a/b"])
def test_invalid_product_name_is_refused(tmp_path: Path, name: str) -> None:
    """The name is used for folders, models and store keys."""
    with pytest.raises(InputError, match="is no name of up to 40"):
        require_free(tmp_path, name)

"""Settings come from four places, and an unknown one is an error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tollgate.errors import InputError
from tollgate.settings import Settings, load_settings
from tollgate.store.redis.store_address import read_address


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    """Each source wins over those before it."""
    (tmp_path / "tollgate.yaml").write_text("grpc_port: 1\nmetrics_port: 1\nstate: s")
    found = load_settings(
        environment={"TOLLGATE_GRPC_PORT": "2", "TOLLGATE_METRICS_PORT": "2"},
        folder=tmp_path,
        flags={"grpc_port": 3, "store_url": None},
    )
    assert found == Settings(state="s", metrics_port=2, grpc_port=3)


def test_without_sources_there_are_defaults(tmp_path: Path) -> None:
    """Other variables are none of our business."""
    found = load_settings(environment={"HOME": "x"}, folder=tmp_path, flags={})
    assert found == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TOLLGATE_GRPC_PROT", "1", "TOLLGATE_GRPC_PROT: "),
        ("TOLLGATE_GRPC_PORT", "many", "TOLLGATE_GRPC_PORT: "),
    ],
)
def test_a_wrong_variable_is_named(
    tmp_path: Path, variable: str, value: str, words: str
) -> None:
    """Unknown key or wrong type: the variable's name leads the message."""
    with pytest.raises(InputError, match=words):
        load_settings(environment={variable: value}, folder=tmp_path, flags={})


@pytest.mark.parametrize("text", ["grpc_prot: 1", "grpc_port: many", "- a", "a: ["])
def test_a_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    """Unknown key, wrong type or no mapping: the file's name leads the message."""
    (tmp_path / "tollgate.yaml").write_text(text)
    with pytest.raises(InputError, match=r"tollgate\.yaml: "):
        load_settings(environment={}, folder=tmp_path, flags={})


def test_a_password_is_masked() -> None:
    """Settings print without secrets."""
    settings = Settings(store_url="redis://user:secret@host:6379/0")
    assert settings.shown()["store_url"] == "redis://***@host:6379/0"
    assert Settings(store_url="unix:///a").shown()["store_url"] == "unix:///a"
    settings = Settings(journal_url="redis://:secret@host")
    assert settings.shown()["journal_url"] == "redis://***@host"
    settings = Settings(feed_url="rediss://step:secret@feed")
    assert settings.shown()["feed_url"] == "rediss://***@feed"
    settings = Settings(otlp_endpoint="https://me:secret@collector")
    assert settings.shown()["otlp_endpoint"] == "https://***@collector"


def test_no_form_of_the_settings_has_a_secret() -> None:
    """Neither a user's password nor that of a key of TLS, printed or shown."""
    url = "rediss://step:s3cret@feed:6380/0?ssl_keyfile=/k&ssl_password=s3cret2&db=1"
    settings = Settings(store_url=url, journal_url=url, feed_url=url)
    hidden = "rediss://***@feed:6380/0?ssl_keyfile=/k&ssl_password=***&db=1"
    for name in ("store_url", "journal_url", "feed_url"):
        assert settings.shown()[name] == hidden
    assert "s3cret" not in repr(settings)
    address = read_address(url.replace("&db=1", "&ssl_certfile=/c"))
    assert address.tls is not None
    assert address.tls.key_password == "s3cret2"
    assert "s3cret" not in repr(address)
    assert "s3cret" not in repr(address.tls)


def test_several_products_are_joined_by_commas(tmp_path: Path) -> None:
    """A command that is about one of them has to be told which."""
    variable = {"TOLLGATE_PRODUCT": "fraud,credit"}
    found = load_settings(environment=variable, folder=tmp_path, flags={})
    assert found.products == ("fraud", "credit")
    with pytest.raises(InputError, match=r"^product: fraud,credit are several"):
        _ = found.product
    found = load_settings(
        environment=variable, folder=tmp_path, flags={"product": "credit"}
    )
    assert (found.product, found.products) == ("credit", ("credit",))
    assert found.shown()["product"] == "credit"


@pytest.mark.parametrize("names", ["", "fraud,", "fraud,credit,fraud"])
def test_a_product_is_named_once(names: str) -> None:
    """Neither empty nor twice."""
    with pytest.raises(InputError, match=r"^product: .* each product is named once"):
        _ = Settings(product_names=names).products

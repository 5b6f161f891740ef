"""librdkafka's settings hold a password, which no message repeats."""

from __future__ import annotations

import logging

import pytest

from tollgate.errors import InputError
from tollgate.stream.kafka import KafkaSource

SASL = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "tollgate",
    "sasl.password": "s3cretXq",
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"sasl.mechanism": "NONE-SUCH"},
        {"no.such.setting": "1"},
        {"ssl.key.password": "s3cretXq", "security.protocol": "wrong"},
        {"group.id": "ours"},
    ],
)
def test_wrong_settings_are_refused_without_the_password(
    wrong: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """One line that names the setting."""
    caplog.set_level(logging.DEBUG)
    settings = SASL | wrong
    with pytest.raises(InputError) as refused:
        KafkaSource("127.0.0.1:1", topic="t", group="g", settings=settings)
    assert "s3cret" not in str(refused.value)
    assert "s3cret" not in caplog.text

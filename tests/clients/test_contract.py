"""The client and the server name the same contract, each in its own package."""

import pytest

import tollgate
import tollgate_client
from clients.client import Client
from tollgate import schema
from tollgate.schema import DEFAULT_OUTCOMES
from tollgate_client import contract

OTHERS = (
    *("FRAUD_INPUTS", "SHOP_INPUTS", "SHOP_FIELDS"),
    *("OUTPUTS", "RANKED_OUTPUTS", "OUTCOMES"),
)
SAME = sorted(name for name in vars(contract) if name.isupper() and name not in OTHERS)


@pytest.mark.parametrize("name", SAME)
def test_a_name_or_limit_of_the_client_is_the_servers(name):
    """Whatever the client calls by this name."""
    assert getattr(contract, name) == getattr(schema, name)


def test_outputs_decisions_and_bits_are_the_servers():
    """In the same order, with the same numbers."""
    assert tuple(schema.ANSWER_TYPES) == contract.OUTPUTS
    assert tuple(schema.RANKED_TYPES) == contract.RANKED_OUTPUTS
    assert DEFAULT_OUTCOMES.words == contract.OUTCOMES
    assert dict(contract.Degraded.__members__) == dict(schema.Degraded.__members__)


def test_both_distributions_have_one_version():
    """An error of the command line names the wheel file of the client by it."""
    assert tollgate_client.__version__ == tollgate.__version__


def test_the_former_import_of_request_scripts_is_the_client():
    """As scripts of `tollgate product new` have it that users hold."""
    assert Client is tollgate_client.Client

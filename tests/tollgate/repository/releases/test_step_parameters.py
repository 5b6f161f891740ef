"""A release tells its steps what they must know of each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tollgate.errors import PolicyError
from tollgate.features.spec.feature_spec import load_spec
from tollgate.features.spec.spec_definition import Field
from tollgate.repository.configs import to_json
from tollgate.repository.hashes import hash_version
from tollgate.repository.releases.release_file import read_release, write_release
from tollgate.repository.releases.rendering import decision_parameters, merged_configs
from tollgate.repository.releases.served_versions import served_policy
from tollgate.schema import read_fields
from tollgate.store.id_lists import LookupList, read_lists

Edit = Callable[[str, str, str], None]
POLICY = "fraud_decision/1/policy.yaml"


def released(repository: Path) -> None:
    """Let the release have the hashes of what is there."""
    release = read_release(repository, product="fraud")
    hashes = dict(release.hashes)
    hashes |= hash_version(repository, "fraud_decision", version=1)
    write_release(repository, msgspec.structs.replace(release, hashes=hashes))


def parameters(repository: Path, step: str) -> dict[str, str]:
    """Take the parameters that a step is loaded with."""
    for one in merged_configs(repository, product="fraud"):
        if one.name == step:
            given = json.loads(to_json(one))["parameters"]
            return {name: value["string_value"] for name, value in given.items()}
    raise AssertionError(step)


def test_feature_step_is_told_the_lists_of_the_policy(repository: Path) -> None:
    """In the order of the policy, with input and key; its own parameters stay."""
    told = parameters(repository, "fraud_features")
    assert read_lists(told["lists"]) == (
        LookupList("stolen_cards", "customer_id", b"tollgate:fraud:list:stolen_cards"),
    )
    assert told["store_deadline_ms"] == "5"
    assert "lists" not in parameters(repository, "fraud_decision")
    lists = served_policy(repository, product="fraud").lists
    assert [one.name for one in lists] == ["stolen_cards"]


def test_no_lists_are_no_parameter(repository: Path, edit: Edit) -> None:
    """A policy without any leaves the feature step as it was."""
    edit(POLICY, "  - {name: stolen_cards, of: customer_id, meaning: deny}\n", "")
    edit(POLICY, "lists:\n", "")
    edit(POLICY, "{stolen_cards: true}", "{amount: {ge: 9000}}")
    released(repository)
    assert "lists" not in parameters(repository, "fraud_features")


def test_a_list_of_an_input_that_is_not_there_is_not_loaded(
    repository: Path, edit: Edit
) -> None:
    """The release knows the inputs; the step alone would look up nothing."""
    edit(POLICY, "of: customer_id", "of: card_id")
    released(repository)
    with pytest.raises(PolicyError, match=r"stolen_cards\.of: 'card_id' is none of"):
        merged_configs(repository, product="fraud")


def test_decision_step_is_told_the_fields_of_the_spec(spec_path: Path) -> None:
    """Name, kind and decimals; without fields there is no parameter."""
    spec = load_spec(spec_path)
    assert "fields" not in decision_parameters("r", spec, "0" * 16)
    fields = (
        Field("distance", "number", decimals=2, low=0, high=9, vocabulary=()),
        Field("channel", "category", decimals=0, low=0, high=0, vocabulary=("web",)),
    )
    spec = msgspec.structs.replace(spec, fields=fields)
    told = decision_parameters("r", spec, "0" * 16)
    assert told["fields"] == "distance=number:2,channel=category"
    assert [
        (one.name, one.type, one.decimals) for one in read_fields(told["fields"])
    ] == [
        ("distance", "number", 2),
        ("channel", "category", 0),
    ]
    with pytest.raises(ValueError, match="is neither NAME=category"):
        read_fields("channel=word")

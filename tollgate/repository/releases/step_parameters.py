"""Pass settings of a release to its steps, as parameters of their configurations."""

from __future__ import annotations

from pathlib import Path

from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import POLICY_FILE, Policy, load_policy
from tollgate.repository.releases.release_file import Challenger
from tollgate.schema import (
    CANARY_PERCENT_PARAMETER,
    CANARY_SEED_PARAMETER,
    CHALLENGER_PARAMETER,
    ENTITY_NAMES_PARAMETER,
    FEATURE_NAMES_PARAMETER,
    FIELDS_PARAMETER,
    LISTS_PARAMETER,
    RELEASE_PARAMETER,
    SPEC_HASH_PARAMETER,
    fields_text,
)
from tollgate.store.id_lists import LookupList, list_key, lists_text

Parameters = dict[str, str]


def load_policy_of(directory: Path, spec: FeatureSpec) -> Policy:
    """
    Read the policy of a version of the decision step, by the spec it is served with.

    Raises:
        PolicyError: It cannot be used.
    """
    return load_policy(
        directory / POLICY_FILE,
        feature_names=spec.feature_names,
        fields=spec.fields,
        id_names=spec.id_names,
        amount=spec.amount,
    )


def lookup_lists(policy: Policy, product: str) -> tuple[LookupList, ...]:
    """List the lists that a product's policy looks up, in the order of their bits."""
    return tuple(
        LookupList(one.name, one.of, list_key(product, one.name))
        for one in policy.lists
    )


def features_parameters(policy: Policy, product: str) -> Parameters:
    """Return the feature step's parameter with the lists to look up, if any."""
    lists = lookup_lists(policy, product)
    return {LISTS_PARAMETER: lists_text(lists)} if lists else {}


def canary_parameters(challenger: Challenger) -> Parameters:
    """Return the decision step's parameters for a canary: name, share and seed."""
    return {
        CHALLENGER_PARAMETER: challenger.release,
        CANARY_PERCENT_PARAMETER: repr(challenger.percent),
        CANARY_SEED_PARAMETER: str(challenger.seed),
    }


def decision_parameters(release: str, spec: FeatureSpec, spec_hash: str) -> Parameters:
    """Return the decision step's parameters: its release, and the spec of its rows."""
    parameters = {
        RELEASE_PARAMETER: release,
        SPEC_HASH_PARAMETER: spec_hash,
        FEATURE_NAMES_PARAMETER: ",".join(spec.feature_names),
    }
    if spec.entities:
        parameters[ENTITY_NAMES_PARAMETER] = ",".join(spec.entity_names)
    if spec.fields:
        parameters[FIELDS_PARAMETER] = fields_text(spec.fields)
    return parameters

"""What a release tells its steps, as parameters of their configurations."""

from __future__ import annotations

from pathlib import Path

from tollgate.features.definition import FeatureSpec
from tollgate.policy import POLICY_FILE, Policy, load_policy
from tollgate.repository.release import Challenger
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
from tollgate.store.lists import LookupList, list_key, lists_text

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
    """List what a product's policy asks the store for, in the order of its bits."""
    return tuple(
        LookupList(one.name, one.of, list_key(product, one.name))
        for one in policy.lists
    )


def features_parameters(policy: Policy, product: str) -> Parameters:
    """Tell the feature step which lists to look up, where there are any."""
    lists = lookup_lists(policy, product)
    return {LISTS_PARAMETER: lists_text(lists)} if lists else {}


def canary_parameters(challenger: Challenger) -> Parameters:
    """Tell the decision step whose answers come from a challenger's model."""
    return {
        CHALLENGER_PARAMETER: challenger.release,
        CANARY_PERCENT_PARAMETER: repr(challenger.percent),
        CANARY_SEED_PARAMETER: str(challenger.seed),
    }


def decision_parameters(release: str, spec: FeatureSpec, spec_hash: str) -> Parameters:
    """Tell the decision step who it is, and what it reads rows by."""
    told = {
        RELEASE_PARAMETER: release,
        SPEC_HASH_PARAMETER: spec_hash,
        FEATURE_NAMES_PARAMETER: ",".join(spec.feature_names),
    }
    if spec.entities:
        told[ENTITY_NAMES_PARAMETER] = ",".join(spec.entity_names)
    if spec.fields:
        told[FIELDS_PARAMETER] = fields_text(spec.fields)
    return told

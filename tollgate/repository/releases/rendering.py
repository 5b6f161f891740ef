"""
Render a release: the parameters of its steps, and models with merged configurations.

A Triton that Tollgate does not run loads the latter.
On such a server a step has one set of parameters for all its versions. Our own server
has one set per release (tollgate/repository/releases/serving_plan.py).
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.features.spec.spec_definition import FeatureSpec
from tollgate.policy import Policy
from tollgate.repository.configs import merge, to_text
from tollgate.repository.product_models import Product, read_product
from tollgate.repository.releases.release_file import (
    Challenger,
    Release,
    read_release,
    release_path,
    require_steps,
    verify_release,
)
from tollgate.repository.releases.served_versions import load_policy_of, released_spec
from tollgate.schema import (
    BREAKER_CALLS_PARAMETER,
    BREAKER_FAILURES_PARAMETER,
    BREAKER_SHARE_PARAMETER,
    CANARY_PERCENT_PARAMETER,
    CANARY_SEED_PARAMETER,
    CHALLENGER_PARAMETER,
    ENTITY_NAMES_PARAMETER,
    FEATURE_NAMES_PARAMETER,
    FIELDS_PARAMETER,
    INTERLEAVED_PARAMETER,
    LISTS_PARAMETER,
    RANKER_PARAMETER,
    RELEASE_PARAMETER,
    SPEC_HASH_PARAMETER,
    STOCK_PARAMETER,
    STORE_DEADLINE_PARAMETER,
    STORE_PROBE_PARAMETER,
    fields_text,
)
from tollgate.store.id_lists import LookupList, list_key, lists_text

# Pass settings of a release to its steps, as parameters of their configurations.

Parameters = dict[str, str]


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
    more = {INTERLEAVED_PARAMETER: "1"} if challenger.interleaved else {}
    return more | {
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


# Settings of the feature step for the store that also apply to the decision step.
_STORE_PARAMETERS = (
    STORE_DEADLINE_PARAMETER,
    STORE_PROBE_PARAMETER,
    BREAKER_FAILURES_PARAMETER,
    BREAKER_CALLS_PARAMETER,
    BREAKER_SHARE_PARAMETER,
)


def store_parameters(policy: Policy, models: Product) -> Parameters:
    """
    Return the decision step's parameters for the store: those that the feature step
    has. None where it reads no store: without hysteresis, and without items in stock.
    """
    if policy.hysteresis is None and not models.ranks:
        return {}
    given = models.steps[models.features_step].parameters
    return {
        name: given[name].string_value for name in _STORE_PARAMETERS if name in given
    }


def ranker_hash(release: Release, models: Product) -> int:
    """
    Hash the files that find and score candidates: of the first step and the model.

    Releases with the same such files share prepared candidates.

    Returns:
        An unsigned number of 64 bits.
    """
    digest = hashlib.blake2b(digest_size=8)
    for step in (models.features_step, models.model_step):
        files = release.hashes_of({step: release.versions[step]})
        for path, one in sorted(files.items()):
            name = path.split("/", 2)[2]
            digest.update(f"{step} {name} {one};".encode())
    return int.from_bytes(digest.digest(), "big")


def step_parameters(
    policy: Policy, models: Product, *, release: Release, spec: FeatureSpec
) -> dict[str, Parameters]:
    """Return the parameters that a release passes to its steps, by step."""
    features = features_parameters(policy, models.name)
    if policy.ranking is not None:
        features[RANKER_PARAMETER] = f"{ranker_hash(release, models):016x}"
        if policy.ranking.stock:
            features[STOCK_PARAMETER] = policy.ranking.stock
    decision = decision_parameters(release.name, spec, release.spec_hash)
    return {
        models.features_step: features,
        models.decision_step: decision | store_parameters(policy, models),
    }


def merged_configs(
    repository: Path, product: str, *, config_name: str = ""
) -> list[ModelConfig]:
    """
    Verify a product's release, and merge it with the configurations.

    Returns:
        Configurations of the steps in data order, then of the ensemble.

    Raises:
        RepositoryError: A file cannot be read, or the release does not fit the
            repository.
        SpecError: The features.yaml cannot be used.
        PolicyError: The policy.yaml cannot be used.
    """
    release = read_release(repository, product=product)
    models = read_product(repository, product, config_name=config_name)
    require_steps(release_path(repository, product), release.versions, product=models)
    verify_release(repository, release)
    spec = released_spec(release, models)
    step = models.decision_step
    policy = load_policy_of(repository / step / str(release.versions[step]), spec)
    parameters = step_parameters(policy, models, release=release, spec=spec)
    merged = [
        merge(
            config,
            versions=release.loaded_versions(name),
            parameters=parameters.get(name),
        )
        for name, config in models.steps.items()
    ]
    return [*merged, merge(models.ensemble, pins=release.versions)]


def render(repository: Path, product: str, *, config_name: str = "") -> dict[str, str]:
    """
    Print the merged configurations, for a Triton that Tollgate does not run.

    Returns:
        Text of a config.pbtxt per model, in the order of `merged_configs`.

    Raises:
        RepositoryError: As `merged_configs`.
    """
    return {
        config.name: to_text(config)
        for config in merged_configs(repository, product, config_name=config_name)
    }

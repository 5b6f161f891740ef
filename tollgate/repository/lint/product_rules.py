"""
Describe the rules behind the findings of `repository_check` on products.

The findings are made there, because a server that starts makes the same checks.
"""

from __future__ import annotations

from tollgate.repository.lint.lint_rule import Rule, Severity

_CONTRACT = "docs/contract.md, "


def _rule(code: str, title: str, *, why: str, source: str, mend: str) -> Rule:
    return Rule(
        code=code,
        title=title,
        severity=Severity.ERROR,
        why=why,
        source=source if source.startswith("docs/") else _CONTRACT + source,
        mend=mend,
    )


RULES = (
    _rule(
        "TG120",
        "the answer is not the contract's",
        why="Clients read each output by name and type.",
        source="Answer",
        mend="Declare exactly the outputs of the contract, [1] per row.",
    ),
    _rule(
        "TG121",
        "an optional input of a step comes from one that is not",
        why="A request without it fails, although the step could do without.",
        source="Request",
        mend="Declare it optional in ensemble and step, or in neither.",
    ),
    _rule(
        "TG122",
        "not exactly one step has a part of the product",
        why="Features, probabilities and decision each come from one step; otherwise "
        "a release could not name its version.",
        source="Between the steps",
        mend="Let one step, and only one, have the output that the finding names.",
    ),
    _rule(
        "TG303",
        "the ensemble pins a version that is not the release's",
        why="Pins belong to the release; a second place would disagree with it.",
        source="Releases",
        mend="model_version: -1 in the ensemble.",
    ),
    _rule(
        "TG310",
        "the release does not hold",
        why="It names what is served, by version and hash. What differs from it was "
        "changed, lost or half copied, and is not loaded.",
        source="Releases",
        mend="Put the named file back, or publish a new version and release it.",
    ),
    _rule(
        "TG311",
        "the release was made for other features",
        why="Model and policy would read numbers that mean something else.",
        source="Releases",
        mend="Release versions that were made with one features.yaml.",
    ),
    _rule(
        "TG312",
        "the record of the model does not fit it",
        why="artifact.json proves which data and features the model was made of.",
        source="Releases",
        mend="Publish the converted folder as it is, or train on these features.",
    ),
    _rule(
        "TG313",
        "the model does not fit its configuration",
        why="Names, types and shapes of model.onnx are what the step is called with; "
        "what onnxruntime cannot load does not serve.",
        source="Releases",
        mend="Correct input and output of config.pbtxt, or publish another model.",
    ),
    _rule(
        "TG314",
        "features.yaml and a configuration disagree",
        why="The step makes the tensors that features.yaml describes.",
        source="features.yaml",
        mend="Declare what the finding names; the sizes follow from features.yaml.",
    ),
    _rule(
        "TG315",
        "policy and model have other labels",
        why="The policy would read the probability of another class.",
        source="policy.yaml",
        mend="List the labels of the policy in the order of the model's classes.",
    ),
    _rule(
        "TG316",
        "a TensorRT plan is missing, or was built from another model",
        why="A plan belongs to one model.onnx, one TensorRT and one kind of GPU.",
        source="docs/conversion.md, TensorRT and the GPU",
        mend="Build it on the machine that serves: `tollgate engine`.",
    ),
    _rule(
        "TG317",
        "features.yaml cannot be used",
        why="Without it there are no features.",
        source="features.yaml",
        mend="Correct the key that the finding names (docs/features.md).",
    ),
    _rule(
        "TG318",
        "policy.yaml cannot be used",
        why="Without it there is no decision.",
        source="policy.yaml",
        mend="Correct the line that the finding names (docs/policy.md).",
    ),
    _rule(
        "TG319",
        "slo.yaml cannot be used",
        why="It may set the objective and the budget of the model.",
        source="docs/publishing.md, The budget",
        mend="Correct the key that the finding names, or take the file out.",
    ),
    _rule(
        "TG321",
        "gates.yaml cannot be used",
        why="Nobody would judge a challenger, or a release that was promoted.",
        source="docs/challenger.md, Gates",
        mend="Correct the line that the finding names, or take the file out.",
    ),
    _rule(
        "TG322",
        "the hook cannot be used",
        why="What it computes must hang on a row's own columns alone, and be the same "
        "in training and while it serves: no clock, no chance, no files, no state.",
        source="docs/features.md, The hook",
        mend="Correct the line that the finding names (docs/features.md).",
    ),
)

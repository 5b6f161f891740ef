"""Rules TG0xx: check that the files that Triton needs exist and can be read."""

from __future__ import annotations

from collections.abc import Iterator

from tollgate.repository.findings import Finding
from tollgate.repository.lint.lint_rule import DOCS, Rule, Severity
from tollgate.repository.lint.product_rules import STEP_FILE
from tollgate.repository.lint.view import View

RULES = (
    Rule(
        code="TG001",
        title="a configuration cannot be read",
        severity=Severity.ERROR,
        why="Triton refuses the model, and every ensemble that names it.",
        source=DOCS + "user_guide/model_configuration.html",
        mend="Correct the line; the fields are those of model_config.proto.",
    ),
    Rule(
        code="TG002",
        title="a model has no version",
        severity=Severity.ERROR,
        why="Triton loads versions, not models; an ensemble needs one too, empty.",
        source=DOCS + "user_guide/model_repository.html",
        mend="Make a directory 1. Git keeps no empty one: put a file in it.",
    ),
    Rule(
        code="TG003",
        title="a Python step has no code",
        severity=Severity.ERROR,
        why="The Python backend looks for the file in each version and fails the load.",
        source=DOCS + "python_backend/README.html",
        mend="Add model.py to the version, or name the file in default_model_filename.",
    ),
    Rule(
        code="TG004",
        title="a step's model is not in the repository",
        severity=Severity.ERROR,
        why="The ensemble does not load without all its steps.",
        source=DOCS + "user_guide/ensemble_models.html",
        mend="Correct model_name, or check the folder that holds all models: a server "
        "with several repositories reads them as one.",
    ),
)


def findings(view: View) -> Iterator[Finding]:
    """Find versions, code and steps that are missing."""
    for model, config in view.configured():
        if not model.versions:
            problem = "has no version: Triton needs a directory 1, for ensembles too"
            file = str(model.directory)
            yield Finding(code="TG002", file=file, where="", problem=problem)
        code = config.default_model_filename or STEP_FILE
        # For a product's step, only the versions of the release matter.
        is_free = model.is_python and model.name not in view.in_products
        for version in model.versions if is_free else ():
            path = model.directory / str(version) / code
            if not path.is_file():
                problem = "is missing: the step's code"
                yield Finding(code="TG003", file=str(path), where="", problem=problem)
    for model, config in view.ensembles():
        if model.name in view.products:
            continue  # the product's own check reads them
        for step in config.ensemble_scheduling.step:
            if step.model_name not in view.models:
                yield Finding(
                    code="TG004",
                    file=model.file,
                    where=f"step {step.model_name}",
                    problem="is not in the repository",
                    at=f"ensemble_scheduling.step[{step.model_name}].model_name",
                )

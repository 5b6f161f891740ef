"""
Explain how much each feature moved a model's answer: read and use explain.npz.

    explanation = read_explanation(version / EXPLAIN_FILE)
    moved = Explainer(explanation).of_class(rows, 1)    # float64 [N, F]
"""

from tollgate.explanation.explainer import Explainer, encoded
from tollgate.explanation.explanation_file import (
    EXPLAIN_FILE,
    Explanation,
    Linear,
    Link,
    Trees,
    decode_explanation,
    encode_explanation,
    read_explanation,
)

__all__ = [
    "EXPLAIN_FILE",
    "Explainer",
    "Explanation",
    "Linear",
    "Link",
    "Trees",
    "decode_explanation",
    "encode_explanation",
    "encoded",
    "read_explanation",
]

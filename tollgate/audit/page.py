"""Render one decision as a static HTML page that loads nothing and runs no script."""

from __future__ import annotations

from html import escape
from typing import Any

from tollgate.audit.evidence import Evidence
from tollgate.audit.kept import ArchivedRelease
from tollgate.audit.lookup import SealedRecord
from tollgate.audit.page_parts import lines, list_section, section, table, tiles, track
from tollgate.audit.page_style import SAFE, STYLE
from tollgate.audit.rows import PROBABILITY, SEQUENCE, WRITER
from tollgate.audit.told import (
    APPLIED_TEXTS,
    Description,
    describe_degraded,
    describe_features,
    describe_inputs,
    describe_reasons,
    describe_rules,
    has_money,
    moment,
)
from tollgate.schema import Applied


def decision_page(found: SealedRecord, archived: ArchivedRelease | None) -> str:
    """Return a decision as one HTML document."""
    values = found.values
    decision = escape(values["decision"])
    sections = [
        _reasons(values, archived),
        _raised(found),
        _inputs(values, archived),
        _features(values, archived),
        list_section(
            "Why the answer is less reliable",
            describe_degraded(values),
            nothing="No degraded bit is set.",
        ),
        _times(values),
        _flagged(found),
        _proof(found),
    ]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(SAFE)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Decision {escape(_name(values))}: {decision}</title>
<style>{STYLE}</style>
</head>
<body>
<header class="{decision}">
<p>{escape(found.link.product)} · decided {escape(moment(values["decided_at"]))}</p>
<h1>{decision.capitalize()}</h1>
<p>Record <code>{escape(_name(values))}</code></p>
</header>
{_tiles(values, archived)}
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def _name(values: dict[str, Any]) -> str:
    return f"{values[WRITER]}:{values[SEQUENCE]}"


def _tiles(values: dict[str, Any], archived: ArchivedRelease | None) -> str:
    score = values["score"]
    figures = [
        ("Score", "none" if score is None or score != score else f"{score:.4f}"),
        ("Release", values["release"]),
        ("Event applied", APPLIED_TEXTS[Applied(values["applied"])]),
        ("Stored for training", "yes" if values["consent"] else "no consent"),
    ]
    if has_money(values, archived):
        figures.insert(1, ("Amount", f"{values['amount_cents'] / 100:,.2f}"))
    return tiles(figures)


def _reasons(values: dict[str, Any], archived: ArchivedRelease | None) -> str:
    reasons = lines(describe_reasons(values, archived))
    text = table(("Code", "Meaning"), reasons) if reasons else _NO_REASON
    rules = [
        f"<tr><th>{escape(one.name)}</th><td>{escape(one.value)}</td>"
        f'<td class="soft">{escape(one.meaning)}</td></tr>'
        for one in describe_rules(values, archived)
    ]
    text += (
        table(("Matching rule", "Code", ""), rules)
        if rules
        else '<p class="soft">No rule of the policy matched.</p>'
    )
    return section("Reasons", text)


def _raised(found: SealedRecord) -> str:
    """List the features that raised the score, as the worker sealed them."""
    descriptions = [
        Description(one.text, f"{one.contribution:+.3f}", one.feature)
        for one in found.reasons
        if one.contribution is not None
    ]
    if not descriptions:
        if found.reasons:
            text = "No feature did: the codes above are the only reasons."
        else:
            text = found.unexplained or "Not computed yet."
        text = f'<p class="soft">{escape(text)}</p>'
        return section("Features that raised the score", text)
    rows = [
        f"<tr><th>{escape(one.name)}</th>"
        f'<td class="number">{escape(one.value)}</td>'
        f'<td class="soft">{escape(one.meaning)}</td></tr>'
        for one in descriptions
    ]
    heads = ("Reason", "Contribution", "Feature")
    return section("Features that raised the score", table(heads, rows))


_NO_REASON = '<p class="soft">No reason code: the score alone decided.</p>'


def _inputs(values: dict[str, Any], archived: ArchivedRelease | None) -> str:
    descriptions = describe_inputs(values, archived)
    if not descriptions:
        text = "Not stored: there was no consent."
        return section("Request", f'<p class="soft">{text}</p>')
    rows = [
        f"<tr><th>{escape(one.name)}</th><td>{escape(one.value)}</td>"
        f'<td class="soft">{escape(one.meaning)}</td></tr>'
        for one in descriptions
    ]
    return section("Request", table(("Input", "Value", ""), rows))


def _features(values: dict[str, Any], archived: ArchivedRelease | None) -> str:
    descriptions = describe_features(values, archived)
    if not descriptions:
        text = "Not stored: there was no consent."
        return section("Model input", f'<p class="soft">{text}</p>')
    age = (
        f"The store had no answer; the oldest value used was "
        f"{values['age_ms'] / 1000:,.1f} s old."
        if values["age_ms"]
        else "The values are those of the store at that moment (age 0)."
    )
    rows = [
        f"<tr><th>{escape(one.name)}</th>"
        f'<td class="number">{escape(one.value)}</td><td>{track(one)}</td>'
        f'<td class="soft">{escape(one.meaning)}</td></tr>'
        for one in descriptions
    ]
    outputs = ", ".join(
        f"{value:.6f}"
        for name, value in values.items()
        if name.startswith(PROBABILITY) and value is not None
    )
    labels = ", ".join(archived.policy.labels) if archived and archived.policy else ""
    heads = ("Feature", "Value", "Position in training", "Meaning")
    return section(
        "Model input",
        f'<p class="soft">{age} Spec {escape(values["spec"])}.</p>'
        + table(heads, rows)
        + f"<p>Probabilities ({escape(labels)}): {escape(outputs)}</p>",
    )


def _times(values: dict[str, Any]) -> str:
    steps = [
        ("Feature step", values["features_us"], "rows, store, features; of its batch"),
        ("Model", values["model_us"], "includes the queue time"),
        ("Decision step", values["decision_us"], "policy; of its batch"),
    ]
    rows = [
        f'<tr><th>{name}</th><td class="number">{taken / 1000:,.2f} ms</td>'
        f'<td class="soft">{words}</td></tr>'
        for name, taken, words in steps
    ]
    total = sum(taken for _, taken, _ in steps) / 1000
    rows.append(
        f'<tr><th>Total</th><td class="number">{total:,.2f} ms</td><td></td></tr>'
    )
    return section("Duration", table(("Step", "Time", ""), rows))


def _flagged(found: SealedRecord) -> str:
    descriptions = [Description(check, detail) for check, detail in found.flags]
    return list_section(
        "Late checks",
        descriptions,
        nothing="The late checks found nothing.",
    )


def _proof(found: SealedRecord) -> str:
    proof = found.evidence
    link = found.link
    verdict = (
        '<p class="good">The record is as it was sealed.</p>'
        if not proof.problems
        else "".join(f'<p class="bad">{escape(one)}</p>' for one in proof.problems)
    )
    facts = [
        ("Sealed", f"{link.sealed}, link {link.number}, row {found.row}"),
        ("Chain", link.chain),
        ("File", f"{link.files[0].name}, SHA-256 {link.files[0].sha256}"),
        ("Digest of the record", proof.digest.hex()),
        ("Merkle root", proof.root),
        ("Link's hash", proof.link_hash),
        ("Head", f"link {proof.head.number}, {proof.head.hash}"),
        ("Anchored", _anchored(proof)),
    ]
    rows = [
        f"<tr><th>{name}</th><td><code>{escape(value)}</code></td></tr>"
        for name, value in facts
    ]
    steps = "".join(
        f"<li>{side} <code>{digest.hex()}</code></li>" for side, digest in proof.path
    )
    text = (
        "Each step is SHA-256 of the byte 1 and the two digests, the named one on "
        "its side; the last is the Merkle root."
    )
    return section(
        "Proof",
        verdict
        + table(("", ""), rows)
        + f"<details><summary>From the record to the root: {len(proof.path)} steps"
        f'</summary><p class="soft">{text}</p><ol>{steps}</ol></details>',
    )


def _anchored(proof: Evidence) -> str:
    if not proof.anchored:
        return "no anchor was given: a rebuilt chain would look the same"
    return f"{proof.anchored} links from this one on are in the anchor"

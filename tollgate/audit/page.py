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


def decision_page(found: SealedRecord, kept: ArchivedRelease | None) -> str:
    """Return a decision as one HTML document."""
    values = found.values
    decision = escape(values["decision"])
    sections = [
        _why(values, kept),
        _raised(found),
        _inputs(values, kept),
        _features(values, kept),
        list_section(
            "What made the answer worth less",
            describe_degraded(values),
            nothing="Nothing: no degraded bit is set.",
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
{_tiles(values, kept)}
<main>
{"".join(sections)}
</main>
</body>
</html>
"""


def _name(values: dict[str, Any]) -> str:
    return f"{values[WRITER]}:{values[SEQUENCE]}"


def _tiles(values: dict[str, Any], kept: ArchivedRelease | None) -> str:
    score = values["score"]
    figures = [
        ("Score", "none" if score is None or score != score else f"{score:.4f}"),
        ("Release", values["release"]),
        ("Event applied", APPLIED_TEXTS[Applied(values["applied"])]),
        ("Kept for learning", "yes" if values["consent"] else "no consent"),
    ]
    if has_money(values, kept):
        figures.insert(1, ("Amount", f"{values['amount_cents'] / 100:,.2f}"))
    return tiles(figures)


def _why(values: dict[str, Any], kept: ArchivedRelease | None) -> str:
    reasons = lines(describe_reasons(values, kept))
    text = table(("Code", "What it says"), reasons) if reasons else _NO_REASON
    rules = [
        f"<tr><th>{escape(one.name)}</th><td>{escape(one.value)}</td>"
        f'<td class="soft">{escape(one.meaning)}</td></tr>'
        for one in describe_rules(values, kept)
    ]
    text += (
        table(("Rule that held", "Its code", ""), rules)
        if rules
        else '<p class="soft">No rule of the policy held.</p>'
    )
    return section("Why", text)


def _raised(found: SealedRecord) -> str:
    """List the features that raised the score, as the worker sealed them."""
    told = [
        Description(one.text, f"{one.contribution:+.3f}", one.feature)
        for one in found.reasons
        if one.contribution is not None
    ]
    if not told:
        if found.reasons:
            text = "Nothing that has words for it: the codes above say it all."
        else:
            text = found.unexplained or "Not looked for yet."
        text = f'<p class="soft">{escape(text)}</p>'
        return section("What raised the score", text)
    rows = [
        f"<tr><th>{escape(one.name)}</th>"
        f'<td class="number">{escape(one.value)}</td>'
        f'<td class="soft">{escape(one.meaning)}</td></tr>'
        for one in told
    ]
    heads = ("What", "By", "Feature")
    return section("What raised the score", table(heads, rows))


_NO_REASON = '<p class="soft">No reason code: the score alone decided.</p>'


def _inputs(values: dict[str, Any], kept: ArchivedRelease | None) -> str:
    told = describe_inputs(values, kept)
    if not told:
        text = "Not kept: there was no consent to it."
        return section("What was asked", f'<p class="soft">{text}</p>')
    rows = [
        f"<tr><th>{escape(one.name)}</th><td>{escape(one.value)}</td>"
        f'<td class="soft">{escape(one.meaning)}</td></tr>'
        for one in told
    ]
    return section("What was asked", table(("Input", "Value", ""), rows))


def _features(values: dict[str, Any], kept: ArchivedRelease | None) -> str:
    told = describe_features(values, kept)
    if not told:
        text = "Not kept: there was no consent to it."
        return section("What the model saw", f'<p class="soft">{text}</p>')
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
        for one in told
    ]
    outputs = ", ".join(
        f"{value:.6f}"
        for name, value in values.items()
        if name.startswith(PROBABILITY) and value is not None
    )
    labels = ", ".join(kept.policy.labels) if kept and kept.policy else ""
    heads = ("Feature", "Value", "Among training", "What it is")
    return section(
        "What the model saw",
        f'<p class="soft">{age} Spec {escape(values["spec"])}.</p>'
        + table(heads, rows)
        + f"<p>Probabilities ({escape(labels)}): {escape(outputs)}</p>",
    )


def _times(values: dict[str, Any]) -> str:
    steps = [
        ("Feature step", values["features_us"], "rows, store, features; of its batch"),
        ("Model", values["model_us"], "with the wait for a batch"),
        ("Decision step", values["decision_us"], "policy; of its batch"),
    ]
    rows = [
        f'<tr><th>{name}</th><td class="number">{taken / 1000:,.2f} ms</td>'
        f'<td class="soft">{words}</td></tr>'
        for name, taken, words in steps
    ]
    total = sum(taken for _, taken, _ in steps) / 1000
    rows.append(
        f'<tr><th>Together</th><td class="number">{total:,.2f} ms</td><td></td></tr>'
    )
    return section("How long it took", table(("Step", "Time", ""), rows))


def _flagged(found: SealedRecord) -> str:
    told = [Description(check, detail) for check, detail in found.flags]
    return list_section(
        "What late checks found", told, nothing="Nothing was found after the fact."
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
        "What proves it",
        verdict
        + table(("", ""), rows)
        + f"<details><summary>From the record to the root: {len(proof.path)} steps"
        f'</summary><p class="soft">{text}</p><ol>{steps}</ol></details>',
    )


def _anchored(proof: Evidence) -> str:
    if not proof.anchored:
        return "no anchor was at hand: a chain made anew cannot be told from this one"
    return f"{proof.anchored} links from this one on are in the anchor"

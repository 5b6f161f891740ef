"""
Generate the reference pages of the documentation site from the code.

The pages list all commands, settings, keys of files, tensors and codes; they are
written when the site is built and are not committed.
"""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer
import yaml
from rich.text import Text
from typer.core import TyperGroup

from tollgate.cli.app import app
from tollgate.features.spec import spec_document
from tollgate.policy import POLICY_FILE, policy_document
from tollgate.repository import slo
from tollgate.repository.product_models import read_product
from tollgate.schema import Degraded
from tollgate.settings import PREFIX, SETTINGS_FILE, Settings

CHECKOUT = Path(__file__).resolve().parent.parent
REPOSITORY = CHECKOUT / "model_repository"
# Codes in the policies that `tollgate product new` writes for readings.
READING_POLICY = CHECKOUT / "tollgate/product/templates/reading_policy.yaml.j2"

_Keys = tuple[type[msgspec.Struct], str, str]  # with title, and where it is explained
_FEATURES = (
    (spec_document.RawSpec, "The file", "features.md#keys-of-the-file"),
    (spec_document.RawEntity, "Entity", "features.md#entities"),
    (spec_document.RawField, "Field", "features.md#fields"),
    (spec_document.RawTable, "Table", "features.md#tables"),
    (spec_document.RawFeature, "Feature", "features.md#features"),
    (spec_document.RawFeed, "Feed", "features.md#keys-of-the-file"),
)
_POLICY = (
    (policy_document.RawPolicy, "The file", "policy.md#keys"),
    (policy_document.RawScore, "Score", "policy.md#a-number"),
    (policy_document.RawFallback, "Fallback", "policy.md#keys"),
    (policy_document.RawSegment, "Segment", "policy.md#keys"),
    (policy_document.RawSegmentFallback, "Fallback of a segment", "policy.md#keys"),
    (policy_document.RawList, "List", "policy.md#lists"),
    (policy_document.RawMeaning, "Effect of a degraded bit", "policy.md#keys"),
    (policy_document.RawRule, "Rule", "policy.md#rules"),
    (policy_document.RawJournal, "Journal", "policy.md#keys"),
    (policy_document.RawIdempotency, "Idempotency", "policy.md#keys"),
    (policy_document.RawNotice, "Notice", "policy.md#keys"),
    (policy_document.RawHysteresis, "Hysteresis", "policy.md#hysteresis"),
)
_SLO = (
    (slo.Slo, "The file", "budget.md"),
    (slo.Layers, "`budget_ms` and `target_ms`", "budget.md#layers"),
)


def pages() -> dict[str, str]:
    """Write each generated page; the keys are paths inside the site."""
    return {
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/features-keys.md": keys_page("features.yaml", _FEATURES),
        "reference/policy-keys.md": keys_page("policy.yaml", _POLICY),
        "reference/slo-keys.md": keys_page("slo.yaml", _SLO),
        "reference/tensors.md": tensors_page(),
        "reference/codes.md": codes_page(),
        "reference/features.schema.json": _schema(spec_document.RawSpec),
        "reference/policy.schema.json": _schema(policy_document.RawPolicy),
    }


# The command line --------------------------------------------------------------------


def commands_page() -> str:
    """List every command with its arguments and options."""
    head = (
        "# Command line\n\n"
        "Every command with all its options, as `tollgate COMMAND --help` shows them. "
        "[Commands](../commands.md) describes what they share: settings, errors, exit "
        "status and JSON. The defaults of [settings](settings.md) can be changed in "
        f"`{SETTINGS_FILE}` and in the environment.\n"
    )
    return "\n".join([head, *_commands(typer.main.get_command(app), ("tollgate",))])


def _commands(group: Any, path: tuple[str, ...]) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        words = (*path, name)
        yield f"{'#' * len(words)} {' '.join(words)}\n"
        yield f"{_prose(command.help)}\n"
        if isinstance(command, TyperGroup):
            yield from _commands(command, words)
            continue
        if command.epilog:
            example = command.epilog.removeprefix("Example: ")
            yield f"```sh\n{Text.from_markup(example).plain}\n```\n"
        parameters = [one for one in command.params if not getattr(one, "hidden", 0)]
        rows = [_parameter(one) for one in parameters if one.name != "help"]
        if rows:
            yield _table(("argument or option", "default", ""), rows)


def _parameter(parameter: Any) -> tuple[str, str, str]:
    """Describe an argument or option: names with its value, default, meaning."""
    is_flag = getattr(parameter, "is_flag", False)
    values = _values(parameter.type_descriptor.annotation)
    if parameter.param_type_name == "argument":
        names = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        shown = [*parameter.opts, *parameter.secondary_opts]
        names = ", ".join(f"`{name}`" for name in shown)
        if not is_flag:
            names += f" `{parameter.metavar or values}`"
    default = parameter.default
    if parameter.required:
        default = "required"
    elif isinstance(parameter.show_default, str):
        default = parameter.show_default
    elif is_flag:
        default = "on" if default is True else "off"
    elif default in (None, "", ()) or callable(default):
        default = ""
    return names, _prose(str(default)), _prose(parameter.help or "")


def _values(annotation: Any) -> str:
    """Name the values of an option's type, such as `INTEGER` or `a|b`."""
    if typing.get_origin(annotation) is typing.Literal:
        return "|".join(map(str, typing.get_args(annotation)))
    if typing.get_origin(annotation) is list:
        return _values(typing.get_args(annotation)[0])
    names = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
    return names.get(annotation, "TEXT")


def _prose(text: str) -> str:
    """Turn a help text with Rich's markup into one paragraph of Markdown."""
    plain = " ".join(Text.from_markup(text or "").plain.split())
    # What a person must type stands in backquotes already; the rest is not Markdown.
    parts = re.split(r"(`[^`]*`)", plain)
    parts[::2] = [re.sub(r"([\\*_<\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


# Settings and files ------------------------------------------------------------------


def settings_page() -> str:
    """List every setting: key, environment variable, option, default, meaning."""
    options = {
        name for command in _leaves(typer.main.get_command(app)) for name in command
    }
    meanings = attributes(Settings)
    rows = []
    for field in msgspec.structs.fields(Settings):
        key = field.encode_name
        option = f"--{key.replace('_', '-')}"
        rows.append(
            (
                f"`{key}`",
                f"`{PREFIX}{key.upper()}`",
                f"`{option}`" if option in options else "",
                _default(field),
                meanings[field.name],
            )
        )
    head = (
        "# Settings\n\n"
        "An option overrides an environment variable, which overrides "
        f"`{SETTINGS_FILE}` in the current folder, which overrides the default "
        "([how settings are read](../commands.md#settings)). An option is listed if "
        "at least one command has it; [the command line](commands.md) shows which.\n"
    )
    columns = ("key", "environment variable", "option", "default", "meaning")
    return f"{head}\n{_table(columns, rows)}"


def _leaves(group: Any) -> Iterator[list[str]]:
    for command in group.commands.values():
        if isinstance(command, TyperGroup):
            yield from _leaves(command)
        else:
            yield [name for one in command.params for name in one.opts]


def keys_page(
    file: str, structs: Sequence[tuple[type[msgspec.Struct], str, str]]
) -> str:
    """List the keys of a file, with types and defaults, as the code reads them."""
    guide = structs[0][2].partition("#")[0]
    parts = [
        f"# Keys of {file}\n",
        f"Every key that the code reads from `{file}`; any other key is refused. "
        f"[{guide.removesuffix('.md').capitalize()}](../{guide}) explains them with "
        "examples.\n",
    ]
    stem = file.partition(".")[0]
    if f"reference/{stem}.schema.json" in _SCHEMAS:
        parts.append(
            f"An editor with a YAML language server completes and checks the keys with "
            f"the [JSON Schema]({stem}.schema.json): "
            f"`# yaml-language-server: $schema={stem}.schema.json`.\n"
        )
    for struct, title, link in structs:
        meanings = attributes(struct)
        rows = [
            (
                f"`{field.encode_name}`",
                _type_name(field.type),
                _default(field),
                *([meanings[field.name]] if meanings else []),
            )
            for field in msgspec.structs.fields(struct)
        ]
        columns = ("key", "type", "default", *(["meaning"] if meanings else []))
        parts.append(f"## {title}\n\n{_table(columns, rows)}")
        parts.append(f"Meaning of the keys: [{link.partition('#')[0]}](../{link}).\n")
    return "\n".join(parts)


_SCHEMAS = ("reference/features.schema.json", "reference/policy.schema.json")


def _schema(struct: type[msgspec.Struct]) -> str:
    return json.dumps(msgspec.json.schema(struct), indent=1) + "\n"


def attributes(struct: type) -> dict[str, str]:
    """Read the `Attributes:` of a docstring: name to meaning."""
    text = inspect.getdoc(struct) or ""
    _, _, part = text.partition("\nAttributes:\n")
    part = part.partition("\n\n")[0]
    entries = re.split(r"^    (?=\w+: )", part, flags=re.MULTILINE)[1:]
    found = (entry.partition(": ") for entry in entries)
    return {name: " ".join(words.split()).rstrip(".") for name, _, words in found}


def _default(field: Any) -> str:
    if field.required:
        return "required"
    value = field.default
    if value is msgspec.NODEFAULT:
        value = field.default_factory()
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if value in (None, "", [], {}, ()):
        return ""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _type_name(kind: Any) -> str:
    """Name a type as somebody who writes YAML would, such as `list of text`."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _type_name(arguments[0])
    if origin is typing.Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    if origin in (typing.Union, types.UnionType):
        names = [_type_name(one) for one in arguments if one is not type(None)]
        return " or ".join(names)
    if origin is list:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"map of {_type_name(arguments[0])} to {_type_name(arguments[1])}"
    if origin is tuple:
        inside = [one for one in arguments if one is not ...]
        return f"list of {_type_name(inside[0])}"
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__.removeprefix("Raw"))
        return name.lower()
    names = {str: "text", int: "whole number", float: "number", bool: "`true`/`false`"}
    return names.get(kind, "any")


# The contract ------------------------------------------------------------------------


def products() -> list[str]:
    """Name the products of the committed model repository."""
    return sorted(path.parent.name for path in REPOSITORY.glob("*/release.json"))


def tensors_page() -> str:
    """List the tensors of each committed product, from its configurations."""
    parts = [
        "# Tensors\n",
        "Inputs and outputs of each ensemble and step of the committed products, as "
        "`config.pbtxt` has them. [The contract](../contract.md) defines their "
        "meaning; [calling Tollgate](../clients.md) shows how to send them. On the "
        "wire, a tensor has the batch as its first dimension.\n",
    ]
    for product in products():
        parts.append(f"## Product {product}\n")
        read = read_product(REPOSITORY, product)
        for model, config in {product: read.ensemble, **read.steps}.items():
            rows = [
                (way, *_tensor(one))
                for way, tensors in (("input", config.input), ("output", config.output))
                for one in tensors
            ]
            columns = ("", "tensor", "type", "dims per row", "optional")
            parts.append(
                f"### {model}\n\nAt most {config.max_batch_size} rows in a request.\n\n"
                f"{_table(columns, rows)}"
            )
    return "\n".join(parts)


def _tensor(tensor: Any) -> tuple[str, str, str, str]:
    kind = type(tensor).DESCRIPTOR.fields_by_name["data_type"].enum_type
    name = kind.values_by_number[tensor.data_type].name.removeprefix("TYPE_")
    dims = ", ".join("any" if one < 0 else str(one) for one in tensor.dims)
    optional = "yes" if getattr(tensor, "optional", False) else ""
    # The protocol calls Triton's STRING bytes.
    return f"`{tensor.name}`", {"STRING": "BYTES"}.get(name, name), dims, optional


def codes_page() -> str:
    """List the degraded bits and the reason codes of committed policies."""
    parts = [
        "# Reason codes and degraded bits\n",
        "An answer explains itself with two outputs: `reason_codes`, which the "
        "product's policy defines, and `degraded`, the same bits for every product.\n",
        "## Degraded bits\n",
        _table(("value", "bit", "meaning"), degraded_rows()),
        "[The contract](../contract.md#degraded-bits) defines each bit exactly; "
        "[reliability](../reliability.md) describes the data that such a decision "
        "uses.\n",
    ]
    for product in products():
        step = read_product(REPOSITORY, product).decision_step
        policy = REPOSITORY / step / "1" / POLICY_FILE
        reasons = yaml.safe_load(policy.read_text())["reasons"]
        rows = [(f"`{code}`", text) for code, text in reasons.items()]
        parts.append(f"## Reason codes of {product}\n\n{_table(('code', ''), rows)}")
    parts.append(
        "## Reason codes of readings\n\n"
        "`tollgate product new` writes these codes into the policy of a product of "
        "[machines and their readings](../sensors.md).\n\n"
        f"{_table(('code', ''), reading_codes())}"
    )
    parts.append(
        "Your own codes are in `reasons` of your [policy.yaml](../policy.md#keys).\n"
    )
    return "\n".join(parts)


def degraded_rows() -> list[tuple[str, str, str]]:
    """Read each bit of `Degraded` with the comment at its line."""
    source = inspect.getsource(Degraded)
    comments = dict(re.findall(r"^    ([A-Z_]+) = 1 << \d+  # (.+)$", source, re.M))
    return [(str(bit.value), f"`{bit.name}`", comments[bit.name]) for bit in Degraded]


def reading_codes() -> list[tuple[str, str]]:
    """Read the fixed reason codes of the template of policies for readings."""
    _, _, reasons = READING_POLICY.read_text().partition("\nreasons:\n")
    found = re.findall(r"^  ([A-Z_]+): (.+)$", reasons, re.MULTILINE)
    return [(f"`{code}`", text) for code, text in found]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    cells = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"

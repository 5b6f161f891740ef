"""A field is found on the line where it stands, however the file is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tollgate.repository.lint.linting import line_of, read_tree

CHECKOUT = Path(__file__).resolve().parents[4]
CONFIGS = sorted(CHECKOUT.glob("model_repository/**/*.pbtxt"))


def printed_fields(message: Any, *, before: str = "") -> Iterator[str]:
    """
    Name the field of each line that protobuf prints for a message, in order.

    A closing bracket has a line too; it is named "}".
    """
    for field, value in message.ListFields():
        is_many = field.is_repeated
        entries = field.message_type and field.message_type.GetOptions().map_entry
        if entries:
            values = [(key, value[key]) for key in sorted(value)]
        else:
            values = list(enumerate(value)) if is_many else [(0, value)]
        for place, (key, one) in enumerate(values):
            path = f"{before}{field.name}" + (f"[#{place}]" if is_many else "")
            if field.message_type is None:
                yield path
                continue
            yield path
            if entries:
                yield f"{path}.key"
                inner = field.message_type.fields_by_name["value"].message_type
                yield f"{path}.value"
                if inner is not None:
                    yield from printed_fields(one, before=f"{path}.value.")
                    yield "}"
                assert key is not None
            else:
                yield from printed_fields(one, before=f"{path}.")
            yield "}"


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent}/{path.name}")
def test_protobufs_own_print_is_found_line_by_line(path: Path) -> None:
    """Every field of every committed configuration, printed one field a line."""
    config = text_format.Parse(path.read_text(), ModelConfig())
    text = text_format.MessageToString(config)
    tree = read_tree(text)
    fields = list(printed_fields(config))
    assert len(fields) == len(text.splitlines())
    for line, field in enumerate(fields, start=1):
        if field != "}":
            assert line_of(tree, field) == line, field


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: f"{path.parent}/{path.name}")
def test_a_misspelt_field_has_the_line_that_protobuf_complains_of(path: Path) -> None:
    """Both readers count the same lines in files that people wrote."""
    text = path.read_text()
    tree = read_tree(text)
    for field in tree.fields:
        if [one.name for one in tree.fields].count(field.name) > 1:
            continue  # a list: its entries have lines of their own
        lines = text.splitlines()
        line = lines[field.line - 1]
        assert line.lstrip().startswith(field.name)
        lines[field.line - 1] = line.replace(field.name, "misspelt", 1)
        with pytest.raises(text_format.ParseError) as raised:
            text_format.Parse("\n".join(lines), ModelConfig())
        assert raised.value.GetLine() == field.line


HAND_WRITTEN = """\
# name: "not this one"  { [
name : "a#b"   # a comment with a } in it
max_batch_size: 8;
input [
  { name: "x" dims: [ 1,
      2 ] }, {
    name: 'y }{ "'
    dims: 3
  }
]
input < name: "z" >
parameters: { key: "one"
  value: { string_value: "two "
    "and three" } }
parameters { key: "\\"four\\"" value { string_value: "" } }
dynamic_batching { preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100 }
"""
PLACES = {
    "": 2,
    "name": 2,
    "max_batch_size": 3,
    "input": 5,
    "input[x]": 5,
    "input[x].dims": 5,
    "input[x].dims[#1]": 6,
    "input[#1]": 6,
    'input[y }{ "].dims': 8,
    "input[z]": 11,
    "input[#2].name": 11,
    "parameters[one]": 12,
    "parameters[one].value.string_value": 13,
    "dynamic_batching.preferred_batch_size[#1]": 16,
    "dynamic_batching.max_queue_delay_microseconds": 17,
    # What is not there has the line of what would hold it.
    "input[x].data_type": 5,
    "input[nobody].dims": 2,
    "input[#9]": 2,
    "dynamic_batching.default_queue_policy.max_queue_size": 16,
    "version_policy": 2,
}


@pytest.mark.parametrize("path", PLACES)
def test_any_writing_is_understood(path: str) -> None:
    """Comments, both brackets, lists, both quotes, strings in pieces."""
    text_format.Parse(HAND_WRITTEN, ModelConfig())  # protobuf takes it
    assert line_of(read_tree(HAND_WRITTEN), path) == PLACES[path]


@settings(deadline=None, max_examples=50)
@given(st.text(alphabet="ab:{}[]<>\"'#,; \n\\", max_size=60))
def test_no_text_is_too_broken(text: str) -> None:
    """It always ends, with a line that the text has."""
    line = line_of(read_tree(text), "a.b[a].b")
    assert 1 <= line <= text.count("\n") + 1

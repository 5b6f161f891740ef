"""The gateway's script allows what the contract names."""

import re
from pathlib import Path

from tollgate import schema
from tollgate.gateway.nginx import NJS_MODULE
from tollgate.gateway.template import INSPECTION, SUSPENSIONS_FOLDER, TEMPLATE

CONTRACT = Path(__file__).parents[3] / "docs" / "contract.md"
SCRIPT = INSPECTION.read_text()


def test_request_parameters_are_those_of_the_contract() -> None:
    """A parameter that the contract gets has to pass the gateway."""
    table = CONTRACT.read_text().partition("| request parameter |")[2].partition("\n\n")
    named = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", table[0], re.M))
    block = re.search(r"^const PARAMETERS = {(.*?)^};", SCRIPT, re.M | re.S)
    assert block is not None
    lines = re.findall(r"(\w+): { field: (\d), words: 'an? (\w+)' }", block[1])
    assert {name: kind for name, _, kind in lines} == named
    # InferParameter of KServe: 1 bool_param, 2 int64_param.
    assert {kind: field for _, field, kind in lines} == {"bool": "1", "int64": "2"}


def test_rows_are_those_of_the_contract() -> None:
    """As many as a step takes."""
    assert f"const MAX_ROWS = {schema.MAX_BATCH_ROWS};" in SCRIPT


def test_nginxs_file_names_what_the_command_prepares() -> None:
    """The module that the command looks for, and the folder that it opens."""
    text = TEMPLATE.read_text()
    assert f"load_module {NJS_MODULE};" in text
    assert f"_temp_path ${{GATEWAY_STATE}}/{SUSPENSIONS_FOLDER};" in text

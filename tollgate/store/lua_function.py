"""
Run apply.lua in this process: the function that folds events into tiles.

A store in memory applies events one by one in Python. Tiles are folded by several
hundred lines of Lua, which have one definition: so a Lua 5.4 runs them here. It has the
functions that the script uses of Redis and of Lua 5.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import Any

from tollgate.errors import SetupError, install_remedy

# Lua 5.4 names `unpack` and `struct` otherwise, and has no frexp. `values` holds the
# values of the call's keys; GET of a missing one gives false, as in Redis.
_AROUND = """
return function(values, changed, KEYS, ARGV)
  local struct, unpack = {pack = string.pack, unpack = string.unpack}, table.unpack
  local function frexp(x)
    local exponent = 0
    if x == 0 then return 0, 0 end
    while x >= 1 do x, exponent = x / 2, exponent + 1 end
    while x < 0.5 do x, exponent = x * 2, exponent - 1 end
    return x, exponent
  end
  local math = setmetatable({frexp = frexp}, {__index = math})
  local _G = setmetatable({unpack = unpack}, {__index = _G})
  local redis = {}
  function redis.pcall(command, key)
    if command ~= 'GET' then error('no command ' .. command) end
    return values[key] or false
  end
  function redis.call(command, key, value)
    if command ~= 'SET' then error('no command ' .. command) end
    values[key], changed[key] = value, value
  end
"""


class LuaFunction:
    """
    Compile apply.lua; one thread at a time may use it.

    Raises:
        SetupError: There is no Lua.
    """

    def __init__(self) -> None:
        try:
            from lupa.lua54 import LuaRuntime
        except ImportError as error:
            missing = "lupa, which runs the function of features with a hop"
            raise SetupError(missing, remedy=install_remedy("edge")) from error
        lua = LuaRuntime(encoding=None, register_eval=False, register_builtins=False)
        script = resources.files("tollgate.store").joinpath("apply.lua").read_text()
        self._table = lua.table_from
        self._apply: Any = lua.execute((_AROUND + script + "\nend").encode())

    def __call__(
        self,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        arguments: Sequence[bytes],
    ) -> tuple[list[bytes], bytes, dict[bytes, bytes]]:
        """
        Apply events.

        Args:
            keys: KEYS of the script.
            values: Value of each key; None for none.
            arguments: ARGV of the script.

        Returns:
            The values in the reply, empty for those it does not return; a status byte
            per event; the values to store.
        """
        known = {
            key: value
            for key, value in zip(keys, values, strict=True)
            if value is not None
        }
        changed = self._table({})
        reply = self._apply(
            self._table(known), changed, self._table(keys), self._table(arguments)
        )
        found = list(reply.values())
        return found[:-1], found[-1], dict(changed.items())

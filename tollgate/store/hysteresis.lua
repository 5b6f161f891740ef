-- Apply readings of one machine to the state of its hysteresis:
-- `apply_readings` of tollgate/policy/hysteresis.py, byte by byte.
--
-- KEYS[1]  the state: version u1, level u1, readings u1, pad, onset i8, end i8,
--          maintenance i8; then the readings, 17 bytes each: time i8, id hash,
--          level + 4 answered + 16 code
-- ARGV[1]  "1" to write, "0" for a dry run: the same answer, nothing stored
-- ARGV[2]  of u4, at_least u4, hold i8, cool_down i8, time to live u4
-- ARGV[3]  the readings, 17 bytes each: time i8, id hash, level u1, with 4 added for a
--          row of maintenance
-- Returns  24 bytes per reading: facts i8, time since onset i8, time since end i8
--
-- It reads no clock and no chance.

local VERSION, HEAD, READING = 1, 28, 17
local NEVER, NONE = -9223372036854775808, -1
local RAISED, HELD, UNCONFIRMED, COOLING_DOWN, LATE_CODE = 1, 2, 3, 4, 5
local COUNTED, REPEATED, LATE = 1, 2, 3
local MAINTENANCE = 4

local unpack, pack = struct.unpack, struct.pack
local sub, floor = string.sub, math.floor

-- Does reading a come before reading b? By time, then by the bytes of the hash.
local function before(a, b)
  if a.time ~= b.time then return a.time < b.time end
  if a.high ~= b.high then return a.high < b.high end
  return a.low < b.low
end

local function reading(s, at)
  local time, high, low, facts = unpack('<i8>I4>I4B', s, at)
  return { time = time, high = high, low = low, facts = facts,
           hash = sub(s, at + 8, at + 15) }
end

local of, at_least, hold, cool_down, ttl = unpack('<I4I4i8i8I4', ARGV[2])
local state = redis.call('GET', KEYS[1])
local level, onset, ended, damaged = 0, NEVER, NEVER, 0
local maintenance = NEVER
local entries, count = {}, 0
if state then
  damaged = 1
  if #state >= HEAD then
    local version, its_level, its_count, its_onset, its_end, its_maintenance =
      unpack('<BBBxi8i8i8', state)
    if version == VERSION and #state == HEAD + its_count * READING then
      level, onset, ended, damaged = its_level, its_onset, its_end, 0
      maintenance = its_maintenance
      for at = HEAD + 1, #state, READING do
        count = count + 1
        entries[count] = reading(state, at)
      end
    end
  end
end
while count > of do
  table.remove(entries, 1)
  count = count - 1
end

-- Drop the readings up to the time of a row of maintenance, and end the level.
local function serve(time)
  maintenance = time
  local rest = {}
  for i = 1, count do
    if entries[i].time > time then rest[#rest + 1] = entries[i] end
  end
  entries, count = rest, #rest
  if onset <= time then level = 0 end
end

local changed, found = false, {}

local function apply(one)
  local raw, stored = one.facts, nil
  for i = 1, count do
    if entries[i].high == one.high and entries[i].low == one.low then
      stored = entries[i].facts
    end
  end
  local kind, was, ones, twos = COUNTED, 0, 0, 0
  local since_onset, since_end = NONE, NONE
  local answered, code
  if stored then
    kind = REPEATED
    answered, code = floor(stored / 4) % 4, floor(stored / 16)
  elseif one.time <= maintenance or (count >= of and before(one, entries[1])) then
    kind, was = LATE, level
    answered, code = math.min(raw, level), LATE_CODE
  else
    local place = count + 1
    while place > 1 and before(one, entries[place - 1]) do place = place - 1 end
    table.insert(entries, place, one)
    count = count + 1
    if count > of then
      table.remove(entries, 1)
      count = count - 1
    end
    local now = entries[count].time
    was = level
    for i = 1, count do
      if entries[i] ~= one then
        local other = entries[i].facts % 4
        if other >= 1 then ones = ones + 1 end
        if other >= 2 then twos = twos + 1 end
      end
    end
    if level > 0 then since_onset = now - onset end
    if ended ~= NEVER then since_end = now - ended end
    local reached = 0
    if twos + (raw >= 2 and 1 or 0) >= at_least then
      reached = 2
    elseif ones + (raw >= 1 and 1 or 0) >= at_least then
      reached = 1
    end
    if level == 0 and reached > 0 and since_end ~= NONE and since_end < cool_down then
      answered, code = 0, COOLING_DOWN
    else
      answered = reached
      if reached < level and since_onset < hold then answered = level end
      if answered > level then code = RAISED
      elseif answered > raw then code = HELD
      elseif answered < raw then code = UNCONFIRMED
      else code = 0 end
    end
    one.facts = raw + 4 * answered + 16 * code
    if answered > level then
      onset = now
    elseif level > 0 and answered == 0 then
      ended = now
    end
    level, changed = answered, true
  end
  local facts = raw + 4 * answered + 16 * code + 128 * kind + 1024 * was
    + 4096 * ones + 262144 * twos + 16777216 * damaged
  found[#found + 1] = pack('<i8i8i8', facts, since_onset, since_end)
end

for at = 1, #ARGV[3], READING do
  local one = reading(ARGV[3], at)
  if one.facts >= MAINTENANCE then
    local facts = 5 * (one.facts - MAINTENANCE) + 16777216 * damaged
    found[#found + 1] = pack('<i8i8i8', facts, NONE, NONE)
    if one.time > maintenance then
      serve(one.time)
      changed = true
    end
  else
    apply(one)
  end
end

if changed and ARGV[1] == '1' then
  local parts = { pack('<BBBxi8i8i8', VERSION, level, count, onset, ended, maintenance) }
  for i = 1, count do
    local one = entries[i]
    parts[i + 1] = pack('<i8', one.time) .. one.hash .. pack('B', one.facts)
  end
  redis.call('SET', KEYS[1], table.concat(parts), 'EX', ttl)
end
return table.concat(found)

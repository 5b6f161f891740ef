-- Apply events to entity values and return the values: the only code anywhere
-- that changes one. It adds, merges, trims and keeps the checksum; sums, ratios
-- and defaults are NumPy's work (tollgate/features/windows/entity_entries.py has the layout).
--
-- KEYS     one per entity value
-- ARGV[1]  "1" to write, "0" for a dry run: the same answer, nothing stored;
--          "2" to write and return no values
-- ARGV[2]  per key, 24 bytes: horizon_us i8, cap u4, ttl_s u4, events u4,
--          entry_bytes u4: 48, and 8 for each column that follows
-- ARGV[3]  the events, grouped by key: entries of their key's entry_bytes
-- Returns  the values, then one string with a status byte per event
--
-- It reads no clock and no chance, so the append-only file may keep the call in
-- place of its effect: loading it gives the same values, byte by byte. Only their
-- time to live then begins again.

local HEADER, BASE = 32, 48
local VERSION = 1
local PURCHASE, LABELLED, REVISION = 1, 2, 256
local APPLIED, DUPLICATE, TOO_LATE, FOREIGN = '\1', '\2', '\3', '\4'
local WRAP, NEGATIVE = 4294967296, 2147483648  -- of a high word: the sign is set
local NO_STRING = 'x'  -- shorter than a header: foreign here, damaged to the reader

local unpack, pack = struct.unpack, struct.pack
local sub, find, floor = string.sub, string.find, math.floor

-- Sum of the words of an entry's columns, two each.
local function column_words(s, at, entry)
  local sum = 0
  for column = at + BASE, at + entry - 1, 8 do
    local a, b = unpack('<I4I4', s, column)
    sum = sum + a + b
  end
  return sum
end

-- Sum of an entry's words; without columns it has twelve.
local function words(s, at, entry)
  local a, b, c, d, e, f, g, h, i, j, k, l =
    unpack('<I4I4I4I4I4I4I4I4I4I4I4I4', s, at)
  return a + b + c + d + e + f + g + h + i + j + k + l + column_words(s, at, entry)
end

-- Does entry a (at position p of s) come after entry b? By time, then by the order
-- key and the id hash, which are stored big-endian: 24 bytes, six numbers.
local function after(s, p, time, b)
  local t = unpack('<i8', s, p)
  if t ~= time then return t > time end
  local x = { unpack('>I4I4I4I4I4I4', s, p + 8) }
  local y = { unpack('>I4I4I4I4I4I4', b, 9) }
  for i = 1, 6 do
    if x[i] ~= y[i] then return x[i] > y[i] end
  end
  return false
end

-- The entries with one more in its place.
local function insert(body, event)
  local time, entry = unpack('<i8', event), #event
  local p = #body - entry + 1
  while p > 0 and after(body, p, time, event) do p = p - entry end
  p = p + entry
  if p > #body then return body .. event end
  return sub(body, 1, p - 1) .. event .. sub(body, p)
end

-- Position of the entry with this id hash, or nil.
local function find_id(body, id, entry)
  local at = 1
  while true do
    at = find(body, id, at, true)
    if not at then return nil end
    if (at - 25) % entry == 0 then return at - 24 end
    at = at + 1
  end
end

local function bit(flags, value)
  return floor(flags / value) % 2
end

-- Sum of a header's words, its checksum left out; two's complement modulo WRAP.
local function header_words(entry, overflow, count, watermark, dropped)
  local low, lowest = watermark % WRAP, dropped % WRAP
  return VERSION + entry * 256 + overflow + count
    + low + (watermark - low) / WRAP + lowest + (dropped - lowest) / WRAP
end

local write, read = ARGV[1] ~= '0', ARGV[1] ~= '2'
local events, at = ARGV[3], 1
local values, statuses = {}, {}

-- The usual case: every event is a purchase, new, and later than all before it. They
-- follow the entries that stay, as they came, so nothing is moved or merged; and most
-- of the header's words are the old ones. Returns the value, or nil if it is not so.
local function append(value, horizon, cap, count, entry)
  local stop = #value + 1
  local form, checksum, overflow, stored, low, high, dropped_low, dropped_high =
    unpack('<I4I4I4I4I4I4I4I4', value)
  if form ~= entry * 256 + VERSION or stored == 0 or HEADER + stored * entry + 1 ~= stop
      or high >= NEGATIVE or dropped_high >= NEGATIVE then
    return nil
  end
  local watermark, dropped = high * WRAP + low, dropped_high * WRAP + dropped_low
  checksum = checksum - stored - low - high
  local newest = unpack('<i8', value, stop - entry)
  local past = at + count * entry
  for p = at, past - 1, entry do
    local a, b, c, d, e, f, g, h, i, flags, k, l =
      unpack('<I4I4I4I4I4I4I4I4I4I4I4I4', events, p)
    local time, id = b * WRAP + a, sub(events, p + 24, p + 31)
    if time <= newest or b >= NEGATIVE or flags % 2 ~= PURCHASE
        or time < watermark - horizon or (overflow > 0 and time <= dropped)
        or find(value, id, HEADER + 1, true)
        or (p > at and find(events, id, at, true) < p) then
      return nil
    end
    newest = time
    if time > watermark then watermark, low, high = time, a, b end
    checksum = checksum + a + b + c + d + e + f + g + h + i + flags + k + l
      + column_words(events, p, entry)
  end
  local from, oldest = HEADER + 1, watermark - horizon
  while from < stop and unpack('<i8', value, from) < oldest do
    checksum = checksum - words(value, from, entry)
    from = from + entry
  end
  stored = (stop - from) / entry + count
  if stored > cap or (count > 1 and unpack('<i8', events, at) < oldest) then return nil end
  checksum = (checksum + stored + low + high) % WRAP
  return pack('<I4I4I4I4I4I4I4I4', form, checksum, overflow, stored, low, high,
    dropped_low, dropped_high) .. sub(value, from) .. sub(events, at, past - 1)
end

-- Any case: one event after the other. Returns the value, and whether it changed.
local function merge(value, horizon, cap, count, entry)
  -- checksum is the entries' alone; the header's words join it when it is packed.
  local body, checksum, overflow, watermark, dropped = '', 0, 0, 0, 0
  local foreign = value and #value < HEADER
  if value and not foreign then
    local version, size
    version, size, checksum, overflow, watermark, dropped =
      unpack('<BBxxI4I4xxxxi8i8', value, 1)
    body = sub(value, HEADER + 1)
    foreign = version ~= VERSION or size ~= entry or #body % entry ~= 0
    checksum = checksum
      - header_words(entry, overflow, #body / entry, watermark, dropped)
  end
  local changed = false

  for p = at, at + count * entry - 1, entry do
    local event = sub(events, p, p + entry - 1)
    local time = unpack('<i8', event)
    local flags = unpack('<I4', event, 37)
    local status = APPLIED
    local old = not foreign and find_id(body, sub(event, 25, 32), entry)
    if foreign then
      status = FOREIGN
    elseif old then
      local stored = sub(body, old, old + entry - 1)
      local has = unpack('<I4', stored, 37)
      local merged
      if bit(flags, PURCHASE) == 1 and bit(has, PURCHASE) == 0 then
        -- A label came first and holds the place: the purchase joins it.
        -- The columns are the purchase's, like all but the label.
        merged = sub(event, 1, 36) .. pack('<I4', has + PURCHASE)
          .. sub(stored, 41, BASE) .. sub(event, BASE + 1)
      elseif bit(flags, PURCHASE) == 0 and (bit(has, LABELLED) == 0
          or floor(flags / REVISION) > floor(has / REVISION)) then
        merged = sub(stored, 1, 36) .. pack('<I4', flags + bit(has, PURCHASE))
          .. sub(event, 41, BASE) .. sub(stored, BASE + 1)
      end
      if merged then
        local head, tail = sub(body, 1, old - 1), sub(body, old + entry)
        if sub(merged, 1, 8) == sub(stored, 1, 8) then
          body = head .. merged .. tail
        else
          -- The label named another time than its purchase has.
          body = insert(head .. tail, merged)
        end
        checksum = checksum - words(stored, 1, entry) + words(merged, 1, entry)
        checksum = checksum % WRAP
        changed = true
      else
        status = DUPLICATE
      end
    elseif time < watermark - horizon or (overflow > 0 and time <= dropped) then
      -- Nothing as old as what a full value dropped comes in again: it would be
      -- dropped, and counted, twice.
      status = TOO_LATE
    else
      body = insert(body, event)
      checksum = (checksum + words(event, 1, entry)) % WRAP
      changed = true
    end
    if status == APPLIED and bit(flags, PURCHASE) == 1 and time > watermark then
      watermark = time
    end
    statuses[#statuses + 1] = status
  end

  if changed then
    local from, oldest = 1, watermark - horizon
    while from <= #body and unpack('<i8', body, from) < oldest do
      checksum = (checksum - words(body, from, entry)) % WRAP
      from = from + entry
    end
    while #body - from + 1 > cap * entry do
      checksum = (checksum - words(body, from, entry)) % WRAP
      overflow = overflow + 1
      dropped = unpack('<i8', body, from)
      from = from + entry
    end
    if from > 1 then body = sub(body, from) end
    local count = #body / entry
    checksum = checksum + header_words(entry, overflow, count, watermark, dropped)
    checksum = checksum % WRAP
    value = pack('<BBxxI4I4I4i8i8', VERSION, entry, checksum, overflow, count,
      watermark, dropped) .. body
  end
  return value, changed
end

local printed = {}  -- Redis takes longer to print a number than to find it here
for k = 1, #KEYS do
  local horizon, cap, ttl, count, entry =
    unpack('<i8I4I4I4I4', ARGV[2], (k - 1) * 24 + 1)
  -- A key of another type is an error of its own only, not of the whole batch.
  local value = redis.pcall('GET', KEYS[k])
  if value and value.err then value = NO_STRING end
  local changed = value and #value > HEADER
    and append(value, horizon, cap, count, entry)
  if changed then
    value = changed
    for _ = 1, count do statuses[#statuses + 1] = APPLIED end
  else
    value, changed = merge(value, horizon, cap, count, entry)
  end
  at = at + count * entry
  if write and changed then
    printed[ttl] = printed[ttl] or string.format('%d', ttl)
    redis.call('SET', KEYS[k], value, 'EX', printed[ttl])
  end
  if read then values[k] = value or '' end
end

values[#values + 1] = table.concat(statuses)
return values

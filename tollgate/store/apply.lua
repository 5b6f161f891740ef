-- Apply events to entity values and return the values: the only code anywhere
-- that changes one. It adds, merges, trims and keeps the checksum; sums, ratios
-- and defaults are NumPy's work (tollgate/features/entries.py has the layout).
--
-- KEYS     one per entity value
-- ARGV[1]  "1" to write, "0" for a dry run: the same answer, nothing kept;
--          "2" to write and return no values
-- ARGV[2]  per key, 24 bytes: horizon_us i8, cap u4, ttl_s u4, events u4,
--          entry_bytes u4: 48, and 8 for each column that follows
-- ARGV[3]  the events, grouped by key: entries of their key's entry_bytes
-- Returns  the values, then one string with a status byte per event
--
-- It reads no clock and no chance, so the append-only file may keep the call in
-- place of its effect: loading it gives the same values, byte by byte. Only their
-- time to live then begins anew.

local HEADER, BASE = 32, 48
local VERSION = 1
local PURCHASE, LABELLED, REVISION = 1, 2, 256
local APPLIED, DUPLICATE, TOO_LATE, FOREIGN = '\1', '\2', '\3', '\4'
local WRAP = 4294967296
local NO_STRING = 'x'  -- shorter than a header: foreign here, damaged to the reader

local unpack, pack = struct.unpack, struct.pack
local sub, find = string.sub, string.find

-- Sum of an entry's words; an entry of 48 bytes has twelve, each column two more.
local function words(s, at, entry)
  local a, b, c, d, e, f, g, h, i, j, k, l =
    unpack('<I4I4I4I4I4I4I4I4I4I4I4I4', s, at)
  local sum = a + b + c + d + e + f + g + h + i + j + k + l
  for column = at + BASE, at + entry - 1, 8 do
    a, b = unpack('<I4I4', s, column)
    sum = sum + a + b
  end
  return sum
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
  return math.floor(flags / value) % 2
end

-- Sum of a header's words, its checksum left out; two's complement modulo WRAP.
local function header_words(entry, overflow, count, watermark, dropped)
  return VERSION + entry * 256 + overflow + count
    + watermark % WRAP + math.floor(watermark / WRAP)
    + dropped % WRAP + math.floor(dropped / WRAP)
end

local write, read = ARGV[1] ~= '0', ARGV[1] ~= '2'
local events, at = ARGV[3], 1
local values, statuses = {}, {}

for k = 1, #KEYS do
  local horizon, cap, ttl, count, entry =
    unpack('<i8I4I4I4I4', ARGV[2], (k - 1) * 24 + 1)
  -- A key of another type is an error of its own only, not of the whole batch.
  local value = redis.pcall('GET', KEYS[k])
  if value and value.err then value = NO_STRING end
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

  for _ = 1, count do
    local event = sub(events, at, at + entry - 1)
    at = at + entry
    local time = unpack('<i8', event)
    local flags = unpack('<I4', event, 37)
    local status = APPLIED
    local old = not foreign and find_id(body, sub(event, 25, 32), entry)
    if foreign then
      status = FOREIGN
    elseif old then
      local kept = sub(body, old, old + entry - 1)
      local has = unpack('<I4', kept, 37)
      local merged
      if bit(flags, PURCHASE) == 1 and bit(has, PURCHASE) == 0 then
        -- A label came first and holds the place: the purchase joins it.
        -- The columns are the purchase's, like all but the label.
        merged = sub(event, 1, 36) .. pack('<I4', has + PURCHASE)
          .. sub(kept, 41, BASE) .. sub(event, BASE + 1)
      elseif bit(flags, PURCHASE) == 0 and (bit(has, LABELLED) == 0
          or math.floor(flags / REVISION) > math.floor(has / REVISION)) then
        merged = sub(kept, 1, 36) .. pack('<I4', flags + bit(has, PURCHASE))
          .. sub(event, 41, BASE) .. sub(kept, BASE + 1)
      end
      if merged then
        local head, tail = sub(body, 1, old - 1), sub(body, old + entry)
        if sub(merged, 1, 8) == sub(kept, 1, 8) then
          body = head .. merged .. tail
        else
          -- The label named another time than its purchase has.
          body = insert(head .. tail, merged)
        end
        checksum = checksum - words(kept, 1, entry) + words(merged, 1, entry)
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
    if write then redis.call('SET', KEYS[k], value, 'EX', ttl) end
  end
  if read then values[k] = value or '' end
end

values[#values + 1] = table.concat(statuses)
return values

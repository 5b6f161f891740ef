-- Apply events to entity values and return the values: the only code anywhere
-- that changes one. It adds, merges, trims and keeps the checksum; sums, ratios
-- and defaults are NumPy's work (tollgate/features/windows/entity_entries.py has the layout).
--
-- KEYS     one per entity value
-- ARGV[1]  "1" to write, "0" for a dry run: the same answer, nothing stored;
--          "2" to write and return no values; "3" the same for a history, in the order
--          of (time, id): its purchases are older than those that came without it
-- ARGV[2]  per key, 24 bytes: horizon_us i8, cap u2, most_bytes u2: a value with tiles
--          of at most so many bytes may hold more events than cap; ttl_s u4, events u4,
--          entry_bytes u2: 48, and 8 for each column that follows; form u2: 0 for a
--          value of events alone, else the number of its form in ARGV[4]
-- ARGV[3]  the events, grouped by key: entries of their key's entry_bytes
-- ARGV[4]  the forms of tiles, each after its length u4; absent or empty without any
--          (tollgate/features/spec/tile_form.py packs them)
-- ARGV[5]  with mode "1", the values that the caller has; absent without any. Per key
--          two u4: how many bytes of the value's beginning to compare, 0 for none; and
--          the length of the value. If the first is not 0, the value's new header
--          follows, then the bytes to compare: its header, and the entries that leave
--          (tollgate/_compiled/appends.pyx packs them)
-- Returns  the values, then one string with a status byte per event; nil in place of a
--          value that began with the bytes to compare: the caller's own, with the new
--          header, without the entries that leave, and with the event at its end
--
-- It reads no clock and no chance, so the append-only file may keep the call in
-- place of its effect: loading it gives the same values, byte by byte. Only their
-- time to live then begins again.

local HEADER, BASE = 32, 48
local VERSION, TILED = 1, 2
local PURCHASE, LABELLED, FRAUD, REVISION = 1, 2, 4, 256
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

-- Sum of the 32-bit words of s from i to j.
local function sum_words(s, i, j)
  local sum = 0
  while i + 31 <= j do
    local a, b, c, d, e, f, g, h = unpack('<I4I4I4I4I4I4I4I4', s, i)
    sum, i = sum + a + b + c + d + e + f + g + h, i + 32
  end
  while i + 7 <= j do
    local a, b = unpack('<I4I4', s, i)
    sum, i = sum + a + b, i + 8
  end
  if i <= j then sum = sum + unpack('<I4', s, i) end
  return sum
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

-- Time before which a value without tiles loses its entries: the horizon's begin, rounded
-- down to a power of two of µs that is at most an eighth of the horizon. So several leave
-- at once, and most purchases remove none.
local lots = {}
local function trim_time(watermark, horizon)
  local lot = lots[horizon]
  if not lot then
    local _, exponent = math.frexp(math.max(floor(horizon / 8), 1))
    lot = 2 ^ (exponent - 1)
    lots[horizon] = lot
  end
  local oldest = watermark - horizon
  return oldest - oldest % lot
end

-- Sum of a header's words, its checksum left out; two's complement modulo WRAP.
local function header_words(entry, overflow, count, watermark, dropped)
  local low, lowest = watermark % WRAP, dropped % WRAP
  return VERSION + entry * 256 + overflow + count
    + low + (watermark - low) / WRAP + lowest + (dropped - lowest) / WRAP
end

local write, load = ARGV[1] ~= '0', ARGV[1] == '3'
local read = not load and ARGV[1] ~= '2'
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
        or time < trim_time(watermark, horizon) or (overflow > 0 and time <= dropped)
        or find(value, id, HEADER + 1, true)
        or (p > at and find(events, id, at, true) < p) then
      return nil
    end
    newest = time
    if time > watermark then watermark, low, high = time, a, b end
    checksum = checksum + a + b + c + d + e + f + g + h + i + flags + k + l
      + column_words(events, p, entry)
  end
  local from, oldest = HEADER + 1, trim_time(watermark, horizon)
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

-- Values with tiles (docs/adr/0020-head-and-tiles.md; bytes in docs/contract.md).

-- A value with tiles holds at most so many events one by one.
local function most_events(cap, most_bytes, other_bytes, entry)
  return math.max(cap, floor((most_bytes - other_bytes) / entry))
end

-- When it is full, events are folded until at most this many are left, so most purchases
-- fold nothing.
local function left_after_fold(cap, most)
  return math.max(cap - math.min(8, floor(cap / 2)), floor(most / 2))
end

-- Bytes of a value with tiles before the newest folded values.
local PREFIX = 160

-- The usual case for tiles, as for append: nothing is folded. Two words of the header
-- change.
local function append_head(value, horizon, cap, count, entry, most_bytes)
  local size = #value
  local word, checksum, folded, stored, low, high = unpack('<I4I4I4I4I4I4', value)
  local from = size - stored * entry + 1
  if word ~= entry * 256 + TILED or stored == 0
      or stored + count > cap and size + count * entry > most_bytes
      or high >= NEGATIVE or from <= PREFIX then
    return nil
  end
  local watermark = high * WRAP + low
  local newest, oldest = unpack('<i8', value, size - entry + 1), watermark - horizon
  local past = at + count * entry
  checksum = checksum - low - high + count
  for p = at, past - 1, entry do
    local a, b, c, d, e, f, g, h, i, flags, k, l =
      unpack('<I4I4I4I4I4I4I4I4I4I4I4I4', events, p)
    local time, id = b * WRAP + a, sub(events, p + 24, p + 31)
    if time <= newest or b >= NEGATIVE or flags % 2 ~= PURCHASE or time < oldest
        or find(value, id, from, true) or (p > at and find(events, id, at, true) < p) then
      return nil
    end
    newest = time
    if time > watermark then watermark, low, high = time, a, b end
    checksum = checksum + a + b + c + d + e + f + g + h + i + flags + k + l
      + column_words(events, p, entry)
  end
  checksum = (checksum + low + high) % WRAP
  return pack('<I4I4I4I4I4I4', word, checksum, folded, stored + count, low, high)
    .. sub(value, 25) .. sub(events, at, past - 1)
end

-- Making a function takes time in every call, so these are made on first use.
local function tile_functions()
  -- The placeholder of a number in each kind of field of a tile, and the kinds.
  local FLAGGED, KNOWN, SUM, MIN, MAX, SQUARES, TIMES, TIME_SQUARES = 1, 2, 3, 4, 5, 6, 7, 8
  local SKETCH, SKETCH_BYTES = 10, 64
  local ZERO, ZEROS = '\0\0\0\0', '\0\0\0\0\0\0\0\0'
  local LARGEST = '\255\255\255\255\255\255\255\127'
  local MISSING = '\0\0\0\0\0\0\0\128'  -- also the smallest
  local FAR = 2147483648  -- tiles may be loaded in front of the first one
  local LAST = WRAP - FAR / 2  -- the largest index, and room for wider tiles
  local ONE = '\1\0\0\0\0\0\0\0'
  local WIDE = ZEROS .. ZEROS
  local NEUTRAL = { ZERO, ZERO, ZEROS, LARGEST, MISSING, WIDE, WIDE, WIDE, WIDE }
  local LABEL_BYTES = 32

  local function size_of(kind)
    if kind <= KNOWN then return 4 end
    if kind == SKETCH then return SKETCH_BYTES end
    return kind < SQUARES and 8 or 16
  end

  local function read_form(s, at, stop)
    local form = {}
    local levels, fields
    levels, fields, form.record, form.labels, form.most = unpack('<I4I4I4I4I4', s, at)
    at = at + 20
    for level = 1, levels do
      local width, reach = unpack('<i8i8', s, at)
      form.width = form.width or width
      form[level] = { width = width, reach = reach, wide = width / form.width }
      at = at + 16
    end
    local offset = 8
    form.fields = {}
    for field = 1, fields do
      local kind, column = unpack('<i4i4', s, at)
      if kind == FLAGGED then form.flagged = offset end
      if kind ~= FLAGGED then form.numbers = true end
      -- Where the number begins in an entry: the cents, or a column.
      local source = column < 0 and 33 or BASE + 8 * column + 1
      form.fields[field] = { kind = kind, column = column, source = source, at = offset }
      offset = offset + size_of(kind)
      at = at + 8
    end
    form.reads_back = at < stop
    return form
  end

  local forms
  local function form_of(number)
    if not forms then
      forms = {}
      local place = 1
      while place <= #ARGV[4] do
        local size = unpack('<I4', ARGV[4], place)
        forms[#forms + 1] = size > 0 and read_form(ARGV[4], place + 4, place + 4 + size)
          or false
        place = place + 4 + size
      end
    end
    return forms[number]
  end

  -- Index of the tile that contains a time: its end in units of the finest width.
  local function index_of(form, time)
    return floor((time + form.width - 1) / form.width)
  end

  -- Magnitude of a number of 64 bits in digits of 16 bits, the lowest first; how many
  -- there are, and whether the number is negative.
  local function digits_of(number)
    local low, high = unpack('<I4I4', number)
    local negative = high >= NEGATIVE
    if negative then
      low, high = WRAP - low, WRAP - 1 - high
      if low == WRAP then low, high = 0, high + 1 end
    end
    local first, third = low % 65536, high % 65536
    return { first, (low - first) / 65536, third, (high - third) / 65536 },
      high == 0 and 2 or 4, negative
  end

  -- Product of two numbers of 64 bits: its 128 bits, two's complement.
  local function product(x, y)
    local a, m, a_negative = digits_of(x)
    local b, n, b_negative = digits_of(y)
    local made, carry = {}, 0
    for k = 1, 8 do
      for i = math.max(1, k + 1 - n), math.min(m, k) do
        carry = carry + a[i] * b[k + 1 - i]
      end
      made[k] = carry % 65536
      carry = (carry - made[k]) / 65536
    end
    if a_negative ~= b_negative then
      carry = 1
      for k = 1, 8 do
        carry = carry + 65535 - made[k]
        made[k] = carry % 65536
        carry = (carry - made[k]) / 65536
      end
    end
    return pack('<I2I2I2I2I2I2I2I2', made[1], made[2], made[3], made[4], made[5],
      made[6], made[7], made[8])
  end

  -- Sketch of one value: the rank of its hash in its register, two registers in a byte.
  local function sketch_of(hash)
    if hash == MISSING then return string.rep('\0', SKETCH_BYTES) end
    local low, high = unpack('<I4I4', hash)
    local register = low % 128
    local _, bits = math.frexp(high)
    local rank = math.min(33 - bits, 15)
    local at = floor(register / 2)
    return string.rep('\0', at) .. string.char(register % 2 == 0 and rank or 16 * rank)
      .. string.rep('\0', SKETCH_BYTES - 1 - at)
  end

  -- The larger rank of each register of two sketches.
  local function join_sketches(a, b)
    local made, others = { string.byte(a, 1, -1) }, { string.byte(b, 1, -1) }
    for i = 1, SKETCH_BYTES do
      local x, y = made[i], others[i]
      if y > 0 and x ~= y then
        local low, other = x % 16, y % 16
        made[i] = math.max(x - low, y - other) + math.max(low, other)
      end
    end
    return string.char(_G.unpack(made))
  end

  -- Number of a field for one event.
  local function number_of(field, event)
    local kind = field.kind
    if kind == FLAGGED then return ZERO end
    local value
    if field.column < 0 then
      value = sub(event, 33, 36) .. ZERO
    else
      value = sub(event, field.source, field.source + 7)
    end
    if kind == KNOWN then return value == MISSING and ZERO or '\1\0\0\0' end
    if kind == SKETCH then return sketch_of(value) end
    if value == MISSING then return NEUTRAL[kind] end
    if kind < SQUARES then return value end
    if kind == SQUARES then return product(value, value) end
    local time = sub(event, 1, 8)
    if kind == TIMES then return product(time, ONE) end
    return product(time, kind == TIME_SQUARES and time or value)
  end

  -- Both numbers of a field together.
  local function joined(kind, a, b)
    if kind <= KNOWN then return pack('<I4', unpack('<I4', a) + unpack('<I4', b)) end
    if kind == SKETCH then return join_sketches(a, b) end
    if kind >= SQUARES then
      local first, second, third, fourth = unpack('<I4I4I4I4', a)
      local c, d, e, f = unpack('<I4I4I4I4', b)
      first = first + c
      second = second + d + (first >= WRAP and 1 or 0)
      third = third + e + (second >= WRAP and 1 or 0)
      fourth = fourth + f + (third >= WRAP and 1 or 0)
      return pack('<I4I4I4I4', first % WRAP, second % WRAP, third % WRAP, fourth % WRAP)
    end
    local low, high = unpack('<I4i4', a)
    local other_low, other_high = unpack('<I4i4', b)
    if kind == SUM then
      low, high = low + other_low, high + other_high
      if low >= WRAP then low, high = low - WRAP, high + 1 end
      return pack('<I4I4', low, high % WRAP)
    end
    local less = high < other_high or (high == other_high and low < other_low)
    if (kind == MIN) == less then return a end
    return b
  end

  -- One tile out of two.
  local function join_tiles(form, index, a, b)
    local _, count = unpack('<I4I4', a)
    local _, other = unpack('<I4I4', b)
    local record = pack('<I4I4', index, count + other)
    for i = 1, #form.fields do
      local field = form.fields[i]
      local from, to = field.at + 1, field.at + size_of(field.kind)
      record = record .. joined(field.kind, sub(a, from, to), sub(b, from, to))
    end
    return record
  end

  local function tile_of(form, index, event)
    local record = pack('<I4I4', index, 1)
    for i = 1, #form.fields do
      record = record .. number_of(form.fields[i], event)
    end
    return record
  end

  -- First tile of s.tiles that ends at an index or later: its position.
  local function tile_at(s, index)
    local size = s.form.record
    local low, high = 0, #s.tiles / size
    while low < high do
      local middle = floor((low + high) / 2)
      if unpack('<I4', s.tiles, middle * size + 1) < index then
        low = middle + 1
      else
        high = middle
      end
    end
    return low * size + 1
  end

  -- Width of a tile in units of the finest, by its age, and the end of the one that
  -- contains a finest tile.
  local function aged(form, watermark, index)
    for level = #form, 2, -1 do
      local own = form[level]
      local wide = own.wide
      if index <= floor((watermark - form[level - 1].reach) / own.width) * wide then
        return wide, floor((index + wide - 1) / wide) * wide
      end
    end
    return 1, index
  end

  -- Position of the tile to which a purchase of a time belongs, or nil. A tile may be
  -- narrower than its age says: then several make up the one.
  local function containing_tile(s, time)
    if not s.base or time < s.watermark - s.horizon then return nil end
    local index = index_of(s.form, time)
    local wide, last = aged(s.form, s.watermark, index)
    local stop = tile_at(s, last - s.base + 1)
    if tile_at(s, last - wide - s.base + 1) == stop then return nil end
    return math.min(tile_at(s, index - s.base), stop - s.form.record)
  end

  -- Replace n bytes of the tiles at position p.
  local function splice(s, p, n, text)
    s.sum = s.sum - sum_words(s.tiles, p, p + n - 1) + sum_words(text, 1, #text)
    s.tiles = sub(s.tiles, 1, p - 1) .. text .. sub(s.tiles, p + n)
  end

  -- Merge tiles to the next width as they age, and remove those that no window reads.
  -- It is done when a tile is added that makes their number a multiple of 64, of 16 or 4
  -- near the most that a value may have; the answers do not depend on it.
  local function is_time_to_age(form, tiles, added)
    local every = tiles + 64 <= form.most and 64 or tiles + 16 <= form.most and 16 or 4
    return floor((tiles - 1) / every) > floor((tiles - added - 1) / every)
  end

  local function age_tiles(s)
    local form, size = s.form, s.form.record
    for level = 2, #form do
      local width, reach, wide = form[level].width, form[level - 1].reach, form[level].wide
      local from, to = floor((s.aged - reach) / width), floor((s.watermark - reach) / width)
      local p = tile_at(s, from * wide + 1 - s.base)
      local stop = tile_at(s, to * wide + 1 - s.base)
      local made, ends = {}, nil
      for at = p, stop - 1, size do
        local index = unpack('<I4', s.tiles, at)
        local last = floor((index + s.base + wide - 1) / wide) * wide - s.base
        if last == ends then
          made[#made] =
            join_tiles(form, last, made[#made], sub(s.tiles, at, at + size - 1))
        else
          made[#made + 1] = pack('<I4', last) .. sub(s.tiles, at + 4, at + size - 1)
        end
        ends = last
      end
      if ends then splice(s, p, stop - p, table.concat(made)) end
    end
    local oldest = floor((s.watermark - s.horizon) / form.width) - s.base
    if #s.tiles > 0 and unpack('<I4', s.tiles) <= oldest then
      splice(s, 1, tile_at(s, oldest + 1) - 1, '')
    end
    s.aged = s.watermark
  end

  -- Position of the label of a folded purchase with this id hash, or nil.
  local function find_label(s, id)
    for p = 1, #s.labels, LABEL_BYTES do
      if sub(s.labels, p + 8, p + 15) == id then return p end
    end
    return nil
  end

  -- Write a label over n bytes of the labels at position p.
  local function put_label(s, p, n, label)
    s.sum = s.sum - sum_words(s.labels, p, p + n - 1) + sum_words(label, 1, #label)
    s.labels = sub(s.labels, 1, p - 1) .. label .. sub(s.labels, p + n)
  end

  -- Is (time, id) after the newest label that left the labels before this call?
  local function label_is_new(s, time, id)
    local known = s.label_before
    if not known or time > known.time then return true end
    if time < known.time then return false end
    local a, b = unpack('>I4I4', id)
    local x, y = unpack('>I4I4', known.id)
    return a > x or (a == x and b > y)
  end

  local function add_label(s, time, id, label_time, flags)
    put_label(s, #s.labels + 1, 0,
      pack('<i8', time) .. id .. pack('<i8I4I4', label_time, flags, 0))
  end

  -- Add the oldest labels by (label time, id) to their tiles.
  local function trim_labels(s)
    while #s.labels > s.form.labels * LABEL_BYTES do
      local oldest, least, least_id
      for p = 1, #s.labels, LABEL_BYTES do
        local known, id = unpack('<i8', s.labels, p + 16), sub(s.labels, p + 8, p + 15)
        local first = not least or known < least
        if known == least then
          local a, b = unpack('>I4I4', id)
          local x, y = unpack('>I4I4', least_id)
          first = a < x or (a == x and b < y)
        end
        if first then oldest, least, least_id = p, known, id end
      end
      if bit(unpack('<I4', s.labels, oldest + 24), FRAUD) == 1 then
        local p = containing_tile(s, (unpack('<i8', s.labels, oldest)))
        if p then
          local at = p + s.form.flagged
          splice(s, at, 4, pack('<I4', unpack('<I4', s.tiles, at) + 1))
        end
      end
      put_label(s, oldest, LABEL_BYTES, '')
      local known = s.label
      local newer = not known or least > known.time
      if known and least == known.time then
        local a, b = unpack('>I4I4', least_id)
        local x, y = unpack('>I4I4', known.id)
        newer = a > x or (a == x and b > y)
      end
      if newer then s.label = { time = least, id = least_id } end
    end
  end

  -- Is an event at a place or before it?
  local function upto(of, event, time)
    if time ~= of.time then return time < of.time end
    local x = { unpack('>I4I4I4I4I4I4', of.order) }
    local y = { unpack('>I4I4I4I4I4I4', event, 9) }
    for i = 1, 6 do
      if x[i] ~= y[i] then return y[i] < x[i] end
    end
    return true
  end

  -- Does the value lack the purchase of this label? It does if that is older than the
  -- first one that came without a history, and newer than what is loaded of the history,
  -- which may still bring it, together with its label.
  local function is_missing(s, event, time)
    return upto(s.first, event, time) and sub(event, 9, 32) ~= s.first.order
      and not (s.loaded and upto(s.loaded, event, time))
  end

  -- Apply a label to a purchase that was folded; `joins` says that this call loaded that
  -- purchase. Returns its status, and whether the value changed.
  local function label_folded(s, event, time, flags, joins)
    local id, label_time = sub(event, 25, 32), unpack('<i8', event, 41)
    if s.form.labels == 0 then return APPLIED, false end
    local p = find_label(s, id)
    if p then
      local has = unpack('<I4', s.labels, p + 24)
      if floor(flags / REVISION) <= floor(has / REVISION) then return DUPLICATE, false end
      put_label(s, p, LABEL_BYTES,
        pack('<i8', time) .. id .. pack('<i8I4I4', label_time, flags, 0))
      return APPLIED, true
    end
    local fraud = bit(flags, FRAUD) == 1
    if not fraud and flags < REVISION then return APPLIED, false end
    -- A correction may be of a label that left: its tile does not know.
    if s.label_before and not joins
        and (flags >= REVISION or not label_is_new(s, label_time, id)) then
      return TOO_LATE, false
    end
    if is_missing(s, event, time) or not containing_tile(s, time) then
      return TOO_LATE, false
    end
    add_label(s, time, id, label_time, flags)
    return APPLIED, true
  end

  -- Number of labels in the head that wait for their purchases.
  local function waiting(body, entry)
    local count = 0
    for p = 1, #body, entry do count = count + 1 - unpack('<I4', body, p + 36) % 2 end
    return count
  end

  -- Number of events that a value may hold one by one.
  local function most_in_head(s, cap, most_bytes, entry)
    local labels = math.min(#s.labels, s.form.labels * LABEL_BYTES)
    local other_bytes = PREFIX + #s.newest + #s.tiles + -#s.tiles % 8 + labels
    return most_events(cap, most_bytes, other_bytes, entry)
  end

  -- Number of events up to the n-th purchase of the head, or to the last.
  local function upto_purchase(body, entry, n)
    local last = 0
    for p = 1, #body, entry do
      if n == 0 then break end
      if unpack('<I4', body, p + 36) % 2 == PURCHASE then
        n, last = n - 1, (p - 1) / entry + 1
      end
    end
    return last
  end

  -- Count tiles from a later base if an index nears the largest u32. Tiles that would be
  -- in front of the base are older than any window.
  local function move_base(s, index)
    if not s.base or index - s.base < LAST then return end
    local size, base, made = s.form.record, index - FAR, {}
    for p = 1, #s.tiles, size do
      local own = unpack('<I4', s.tiles, p) + s.base - base
      if own > 0 then
        made[#made + 1] = pack('<I4', own) .. sub(s.tiles, p + 4, p + size - 1)
      end
    end
    splice(s, 1, #s.tiles, table.concat(made))
    s.base = base
  end

  -- Fold the oldest n events of the head into tiles; a label that still waits for its
  -- purchase there is dropped.
  local function fold(s, n, entry)
    local form, size = s.form, s.form.record
    if n > 0 then
      move_base(s, index_of(form, (unpack('<i8', s.body, (n - 1) * entry + 1))))
    end
    local last = #s.tiles - size + 1
    local tile, index
    if last >= 1 then
      tile = sub(s.tiles, last)
      index = unpack('<I4', tile)
      s.sum = s.sum - sum_words(tile, 1, size)
      s.tiles = sub(s.tiles, 1, last - 1)
    end
    local made, late = {}, {}
    local before = #s.tiles / size + (tile and 1 or 0)
    for p = 1, n * entry, entry do
      local event = sub(s.body, p, p + entry - 1)
      local time = unpack('<i8', event)
      local flags = unpack('<I4', event, 37)
      s.sum = s.sum - words(event, 1, entry)
      if bit(flags, PURCHASE) == 1 then
        local _, own = aged(form, s.watermark, index_of(form, time))
        if not s.base then s.base = own - FAR end
        own = own - s.base
        if tile and own <= index then
          tile = join_tiles(form, index, tile, tile_of(form, own, event))
        else
          made[#made + 1] = tile
          tile, index = tile_of(form, own, event), own
        end
        s.newest = pack('<I4I4i8', unpack('<I4', event, 33), 0, time) .. sub(s.newest, 17)
        for c = 0, (entry - BASE) / 8 - 1 do
          local value = sub(event, BASE + 8 * c + 1, BASE + 8 * c + 8)
          if value ~= MISSING then
            s.newest = sub(s.newest, 1, 16 * c + 16) .. value .. sub(event, 1, 8)
              .. sub(s.newest, 16 * c + 33)
          end
        end
        local fraud = bit(flags, FRAUD) == 1 and bit(flags, LABELLED) == 1
        if form.labels > 0 and bit(flags, LABELLED) == 1
            and (fraud or flags >= REVISION) then
          late[#late + 1] = event
        end
        s.time, s.order = time, sub(event, 9, 32)
        if not s.first or (s.loaded and not upto(s.loaded, event, time)
            and upto(s.loaded, ZEROS .. s.first.order, s.first.time)) then
          s.first = { time = time, order = s.order }
        end
        s.folded = math.min(s.folded + 1, WRAP - 1)
      end
    end
    made[#made + 1] = tile
    local text = table.concat(made)
    s.sum = s.sum + sum_words(text, 1, #text)
    s.tiles = s.tiles .. text
    s.body = sub(s.body, n * entry + 1)
    local tiles = #s.tiles / size
    if is_time_to_age(form, tiles, tiles - before) then age_tiles(s) end
    for i = 1, #late do
      local event = late[i]
      add_label(s, unpack('<i8', event), sub(event, 25, 32), unpack('<i8', event, 41),
        unpack('<I4', event, 37) - PURCHASE)
    end
  end

  -- Read a value with tiles; nil if it has another layout.
  local function read_tiled(value, form, horizon, entry)
    local newest = 16 * (1 + (entry - BASE) / 8)
    local s = { form = form, horizon = horizon, folded = 0, watermark = 0, sum = 0, aged = 0,
      tiles = '', labels = '', body = '' }
    if not value then
      s.newest = string.rep(MISSING .. ZEROS, newest / 16)
      return s
    end
    local prefix = PREFIX + newest
    if #value < prefix then return nil end
    local word, checksum, count, tiles, labels, label_time, first, loaded
    word, checksum, s.folded, count, s.watermark, s.time = unpack('<I4I4I4I4i8i8', value)
    s.order = sub(value, 33, 56)
    s.base, tiles, labels, label_time, s.aged = unpack('<i8I4I4i8xxxxxxxxi8', value, 57)
    first, loaded = unpack('<i8', value, 97), unpack('<i8', value, 129)
    local tile_bytes = tiles * form.record
    local padded = tile_bytes + -tile_bytes % 8
    if word ~= entry * 256 + TILED
        or #value ~= prefix + padded + labels * LABEL_BYTES + count * entry then
      return nil
    end
    s.sum = checksum - word - sum_words(value, 9, prefix)
    s.newest = sub(value, PREFIX + 1, prefix)
    s.tiles = sub(value, prefix + 1, prefix + tile_bytes)
    s.labels = sub(value, prefix + padded + 1, prefix + padded + labels * LABEL_BYTES)
    s.body = sub(value, prefix + padded + labels * LABEL_BYTES + 1)
    if s.folded == 0 then s.time, s.order = nil, nil end
    if s.folded == 0 or tiles == 0 and s.base == 0 then s.base = nil end
    if sub(value, 73, 80) ~= MISSING then
      s.label = { time = label_time, id = sub(value, 81, 88) }
      s.label_before = s.label
    end
    if s.folded > 0 then s.first = { time = first, order = sub(value, 105, 128) } end
    if sub(value, 129, 136) ~= MISSING then
      s.loaded = { time = loaded, order = sub(value, 137, 160) }
    end
    return s
  end

  local NOWHERE = MISSING .. ZEROS .. ZEROS .. ZEROS
  local function place(of)
    return of and pack('<i8', of.time) .. of.order or NOWHERE
  end

  local function write_tiled(s, entry)
    trim_labels(s)
    local tiles, labels = #s.tiles / s.form.record, #s.labels / LABEL_BYTES
    local more = pack('<I4I4i8i8', s.folded, #s.body / entry, s.watermark, s.time or 0)
      .. (s.order or string.rep('\0', 24))
      .. pack('<i8I4I4', s.base or 0, tiles, labels)
      .. (s.label and pack('<i8', s.label.time) .. s.label.id or MISSING .. ZEROS)
      .. pack('<i8', s.aged) .. place(s.first) .. place(s.loaded) .. s.newest
    local word = entry * 256 + TILED
    local checksum = (s.sum + word + sum_words(more, 1, #more)) % WRAP
    return pack('<I4I4', word, checksum) .. more .. s.tiles
      .. string.rep('\0', -#s.tiles % 8) .. s.labels .. s.body
  end

  -- As append_head, and purchases without a label that counts are folded. All are older
  -- than those of this call, whose rows read the same from their tiles, unless features
  -- read further back than the newest value.
  local function append_tiled(value, horizon, cap, count, entry, most_bytes, form)
    if form.reads_back then return nil end
    local size = #value
    local word, checksum, folded, stored, low, high = unpack('<I4I4I4I4I4I4', value)
    local from = size - stored * entry + 1
    local most = most_events(cap, most_bytes, size - stored * entry, entry)
    local n = stored + count - left_after_fold(cap, most)
    if word ~= entry * 256 + TILED or folded == 0 or stored + count <= most or n > stored
        or high >= NEGATIVE or from <= PREFIX then
      return nil
    end
    local columns = (entry - BASE) / 8
    local prefix = PREFIX + 16 + 16 * columns
    local base, tiles, labels = unpack('<i8I4I4', value, 57)
    local record = form.record
    local tile_end = prefix + tiles * record
    local label_from = tile_end + -(tiles * record) % 8
    if label_from + labels * LABEL_BYTES + 1 ~= from then return nil end  -- damaged
    -- Up to the first purchase whose label has to be listed.
    for p = from, form.labels > 0 and from + (n - 1) * entry or 0, entry do
      local flags = unpack('<I4', value, p + 36)
      if flags ~= PURCHASE and flags ~= PURCHASE + LABELLED then
        n = (p - from) / entry
        break
      end
    end
    if n == 0 then return nil end
    local watermark = high * WRAP + low
    local newest, oldest = unpack('<i8', value, size - entry + 1), watermark - horizon
    local past = at + count * entry
    local sum = checksum
    for p = at, past - 1, entry do
      local a, b, c, d, e, f, g, h, i, flags, k, l =
        unpack('<I4I4I4I4I4I4I4I4I4I4I4I4', events, p)
      local time, id = b * WRAP + a, sub(events, p + 24, p + 31)
      if time <= newest or b >= NEGATIVE or flags % 2 ~= PURCHASE or time < oldest
          or find(value, id, from, true) or (p > at and find(events, id, at, true) < p) then
        return nil
      end
      newest = time
      sum = sum + a + b + c + d + e + f + g + h + i + flags + k + l
        + column_words(events, p, entry)
    end
    watermark = math.max(watermark, newest)
    if sub(value, 129, 136) ~= MISSING
        and unpack('<i8', value, 97) <= unpack('<i8', value, 129) then
      return nil  -- the first purchase after a loaded history may be among them
    end
    local tile, index
    if tiles > 0 then
      tile = sub(value, tile_end - record + 1, tile_end)
      index = unpack('<I4', tile)
      sum = sum - sum_words(tile, 1, record)
      tile_end = tile_end - record
    end
    local newest_values = sub(value, PREFIX + 1, prefix)
    local a, b, c, d, e, f, g, h, cents, flags, k, l =
      unpack('<I4I4I4I4I4I4I4I4I4I4I4I4', value, 9)
    -- What changes of the prefix: its numbers up to the order key, the count of the tiles
    -- and the newest values.
    sum = sum - (a + b + c + d + e + f + g + h + cents + flags + k + l) - tiles
      - sum_words(newest_values, 1, #newest_values)
    local first, left = prefix + 1, floor((watermark - horizon) / form.width) - base
    while first <= tile_end and unpack('<I4', value, first) <= left do
      sum = sum - sum_words(value, first, first + record - 1)
      first = first + record
    end
    local before = (tile_end - first + 1) / record + (tile and 1 or 0)
    local made = {}
    for p = from, from + (n - 1) * entry, entry do
      a, b, c, d, e, f, g, h, cents, flags, k, l =
        unpack('<I4I4I4I4I4I4I4I4I4I4I4I4', value, p)
      if flags % 2 ~= PURCHASE or b >= NEGATIVE then return nil end
      sum = sum - (a + b + c + d + e + f + g + h + cents + flags + k + l)
      local _, own = aged(form, watermark, index_of(form, b * WRAP + a))
      own = own - base
      if own >= LAST then return nil end
      local join = index and own <= index
      if own <= left then
        -- It is in no window any more.
      elseif join and not form.numbers then
        local _, others = unpack('<I4I4', tile)
        tile = pack('<I4I4', index, others + 1) .. sub(tile, 9)
      elseif join then
        tile = join_tiles(form, index, tile, tile_of(form, own, sub(value, p, p + entry - 1)))
      else
        made[#made + 1] = tile
        index = own
        if not form.numbers then
          tile = pack('<I4I4', own, 1) .. (form.flagged and ZERO or '')
        else
          tile = tile_of(form, own, sub(value, p, p + entry - 1))
        end
      end
      if columns == 0 then
        newest_values = pack('<I4I4I4I4', cents, 0, a, b)
      else
        sum = sum - column_words(value, p, entry)
        newest_values = pack('<I4I4I4I4', cents, 0, a, b) .. sub(newest_values, 17)
        for column = 0, columns - 1 do
          local number = sub(value, p + BASE + 8 * column, p + BASE + 8 * column + 7)
          if number ~= MISSING then
            newest_values = sub(newest_values, 1, 16 * column + 16) .. number
              .. sub(value, p, p + 7) .. sub(newest_values, 16 * column + 33)
          end
        end
      end
    end
    made[#made + 1] = tile
    made = table.concat(made)
    sum = sum + sum_words(made, 1, #made)
    tiles = (tile_end - first + 1 + #made) / record
    if is_time_to_age(form, tiles, tiles - before) then return nil end
    folded, stored = math.min(folded + n, WRAP - 1), stored + count - n
    low = watermark % WRAP
    high = (watermark - low) / WRAP
    sum = sum + folded + stored + low + high + a + b + c + d + e + f + g + h + tiles
      + sum_words(newest_values, 1, #newest_values)
    most = most_events(cap, most_bytes,
      prefix + tiles * record + -(tiles * record) % 8 + labels * LABEL_BYTES, entry)
    if stored > most then return nil end
    local last = from + (n - 1) * entry
    local more = pack('<I4I4I4I4I4I4', folded, stored, low, high, a, b)
      .. sub(value, last + 8, last + 31) .. pack('<i8I4I4', base, tiles, labels) .. sub(value, 73, PREFIX) .. newest_values
    return pack('<I4I4', word, sum % WRAP) .. more .. sub(value, first, tile_end) .. made
      .. string.rep('\0', -(tiles * record) % 8)
      .. sub(value, label_from + 1, from - 1) .. sub(value, from + n * entry)
      .. sub(events, at, past - 1)
  end

  -- Was the place of this event folded already?
  local function is_folded(s, event, time)
    return s.time and upto(s, event, time)
  end

  -- Remember the newest purchase of a history. The first that is folded after it is the
  -- first of those that were not in the history.
  local function note_loaded(s, event, time)
    if not s.loaded or not upto(s.loaded, event, time) then
      s.loaded = { time = time, order = sub(event, 9, 32) }
    end
  end

  -- Add a purchase of a history to its tile, if it comes after those that the history
  -- added before, and is older than all others that were folded. Returns its status.
  local function load_old(s, event, time)
    if upto(s.first, event, time) and not (s.loaded and upto(s.loaded, event, time))
        and sub(event, 9, 32) ~= s.first.order then
      local index = index_of(s.form, time)
      local wide, last = aged(s.form, s.watermark, index)
      local size, base = s.form.record, s.base
      local p, stop = tile_at(s, last - wide - base + 1), tile_at(s, last - base + 1)
      local tile = tile_of(s.form, last - base, event)
      if p < stop then
        p = stop - size
        tile = join_tiles(s.form, last - base, tile, sub(s.tiles, p, stop - 1))
        splice(s, p, size, tile)
      else
        splice(s, p, 0, tile)
      end
      for c = -1, (#event - BASE) / 8 - 1 do
        local at = 16 * (c + 1)
        local number = c < 0 and sub(event, 33, 36) .. ZERO
          or sub(event, BASE + 8 * c + 1, BASE + 8 * c + 8)
        local newest = unpack('<i8', s.newest, at + 9)
        -- A newest value of this instant is the history's, or else of a live purchase.
        if number ~= MISSING and (sub(s.newest, at + 1, at + 8) == MISSING
            or newest < time or (newest == time and time < s.first.time)) then
          s.newest = sub(s.newest, 1, at) .. number .. sub(event, 1, 8)
            .. sub(s.newest, at + 17)
        end
      end
      note_loaded(s, event, time)
      s.folded = math.min(s.folded + 1, WRAP - 1)
      local added = p == stop and 1 or 0
      if is_time_to_age(s.form, #s.tiles / size, added) then age_tiles(s) end
      return APPLIED, true
    end
    return TOO_LATE, false
  end

  return { form_of = form_of, append = append_tiled, read = read_tiled, write = write_tiled,
    is_folded = is_folded, label_folded = label_folded, load_old = load_old, note_loaded = note_loaded, fold = fold,
    waiting = waiting, upto_purchase = upto_purchase, most_in_head = most_in_head }
end

local tile_store  -- the functions, once a key of the call has tiles

-- Any case: one event after the other. Returns the value, whether it changed, and the
-- value to store if that is another one.
local function merge(value, horizon, cap, count, entry, most_bytes, form)
  -- checksum is the entries' alone; the header's words join it when it is packed.
  local body, checksum, overflow, watermark, dropped = '', 0, 0, 0, 0
  local foreign = value and #value < HEADER
  local tiled
  if form then
    tiled = not foreign and tile_store.read(value, form, horizon, entry)
    if tiled then
      body, watermark = tiled.body, tiled.watermark
    else
      foreign = true
    end
  elseif value and not foreign then
    local version, size
    version, size, checksum, overflow, watermark, dropped =
      unpack('<BBxxI4I4xxxxi8i8', value, 1)
    body = sub(value, HEADER + 1)
    foreign = version ~= VERSION or size ~= entry or #body % entry ~= 0
    checksum = checksum
      - header_words(entry, overflow, #body / entry, watermark, dropped)
  end
  local changed, began = false, watermark
  local loaded = {}  -- id hashes of the purchases that this call loads

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
      if tiled and bit(flags, PURCHASE) == 1 and bit(has, PURCHASE) == 0
          and (time < began - horizon or tile_store.is_folded(tiled, event, time)) then
        status = TOO_LATE  -- its label waits under a later time
      elseif bit(flags, PURCHASE) == 1 and bit(has, PURCHASE) == 0 then
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
        if tiled and load and bit(flags, PURCHASE) == 1 then
          tile_store.note_loaded(tiled, event, time)
        end
      elseif status == APPLIED then
        status = DUPLICATE
      end
    elseif time < (tiled and began - horizon or trim_time(watermark, horizon))
        or (overflow > 0 and time <= dropped) then
      -- Nothing as old as what a full value dropped comes in again: it would be
      -- dropped, and counted, twice.
      status = TOO_LATE
    elseif tiled and tile_store.is_folded(tiled, event, time) then
      status = TOO_LATE
      local taken = false
      if bit(flags, PURCHASE) == 0 then
        status, taken =
          tile_store.label_folded(tiled, event, time, flags, loaded[sub(event, 25, 32)])
      elseif load then
        status, taken = tile_store.load_old(tiled, event, time)
        loaded[sub(event, 25, 32)] = taken
      end
      changed = changed or taken
    elseif tiled and bit(flags, PURCHASE) == 0 and (form.labels == 0
        or tile_store.waiting(body, entry) >= cap - 1) then
      status = form.labels == 0 and APPLIED or TOO_LATE
    else
      body = insert(body, event)
      checksum = (checksum + words(event, 1, entry)) % WRAP
      changed = true
      if tiled and load and bit(flags, PURCHASE) == 1 then
        tile_store.note_loaded(tiled, event, time)
      end
    end
    if status == APPLIED and bit(flags, PURCHASE) == 1 and time > watermark then
      watermark = time
    end
    statuses[#statuses + 1] = status
  end

  if changed and tiled then
    tiled.body, tiled.watermark = body, watermark
    tiled.sum = tiled.sum + checksum
    local held, most = #body / entry, tile_store.most_in_head(tiled, cap, most_bytes, entry)
    local full = held > most
    if read or not full then value = tile_store.write(tiled, entry) end
    while held > most do
      -- A history fills the place before the purchases that are there, and no other.
      local leaving = held - (load and most or left_after_fold(cap, most))
      tile_store.fold(tiled, tile_store.upto_purchase(tiled.body, entry, leaving), entry)
      held = #tiled.body / entry
      most = tile_store.most_in_head(tiled, cap, most_bytes, entry)
    end
    return value, true, full and tile_store.write(tiled, entry) or nil
  end
  if changed then
    local from, oldest = 1, watermark - horizon
    local lot = trim_time(watermark, horizon)
    while from <= #body do
      local time = unpack('<i8', body, from)
      if time >= lot then
        if #body - from + 1 <= cap * entry then break end
        if time >= oldest then overflow, dropped = overflow + 1, time end
      end
      checksum = (checksum - words(body, from, entry)) % WRAP
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
local function digits(number)
  local text = printed[number]
  if not text then
    text = string.format('%d', number)
    printed[number] = text
  end
  return text
end

local known, place = write and read and ARGV[5], 1

-- Append an event to a value that the caller has, so that Lua makes no string of the
-- value's size: Redis 7 and newer hash each byte of one. The header tells the caller's
-- value from others (docs/adr/0021-append-in-place.md). Returns whether it is done; if
-- not, nothing changed but the time to live.
local function append_in_place(key, ttl, event)
  local compared, size = unpack('<I4I4', known, place)
  local new = place + 8
  if compared == 0 then
    place = new
    return false
  end
  local old = new + HEADER
  place = old + compared
  if redis.pcall('GETRANGE', key, '0', digits(compared - 1))
      ~= sub(known, old, place - 1) then
    return false
  end
  local header = sub(known, new, old - 1)
  if compared > HEADER then
    local rest = redis.call('GETRANGE', key, digits(compared), '-1')
    if #rest ~= size - compared then return false end
    redis.call('SET', key, header .. rest .. event, 'EX', digits(ttl))
    return true
  end
  -- A value of another length is damaged; the user may lack the right to one of these.
  -- A full store refuses SETRANGE, but not EXPIRE.
  local length = redis.pcall('SETRANGE', key, '0', header)
  if length == size and redis.pcall('EXPIRE', key, digits(ttl)) == 1
      and redis.pcall('APPEND', key, event) == size + #event then
    return true
  end
  if type(length) == 'number' then
    redis.call('SETRANGE', key, '0', sub(known, old, place - 1))
  end
  return false
end

for k = 1, #KEYS do
  local horizon, cap, most_bytes, ttl, count, entry, number =
    unpack('<i8I2I2I4I4I2I2', ARGV[2], (k - 1) * 24 + 1)
  local past = at + count * entry
  local done = known and append_in_place(KEYS[k], ttl, sub(events, at, past - 1))
  if done then
    values[k] = false
    for _ = 1, count do statuses[#statuses + 1] = APPLIED end
  else
    local form
    -- A key of another type is an error of its own only, not of the whole batch.
    local value = redis.pcall('GET', KEYS[k])
    if value and value.err then value = NO_STRING end
    local changed
    if value and #value > HEADER and not (load and number > 0) then
      changed = (number > 0 and append_head or append)(value, horizon, cap, count, entry,
        most_bytes)
    end
    if number > 0 and not changed then
      tile_store = tile_store or tile_functions()
      form = tile_store.form_of(number)
      changed = value and #value > HEADER and not load
        and tile_store.append(value, horizon, cap, count, entry, most_bytes, form)
    end
    local stored
    if changed then
      value = changed
      for _ = 1, count do statuses[#statuses + 1] = APPLIED end
    else
      value, changed, stored = merge(value, horizon, cap, count, entry, most_bytes, form)
    end
    if write and changed then
      redis.call('SET', KEYS[k], stored or value, 'EX', digits(ttl))
    end
    if read then values[k] = value or '' end
  end
  at = past
end

values[#values + 1] = table.concat(statuses)
return values

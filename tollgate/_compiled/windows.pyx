# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""
Read a batch's windows from entity values in one loop: same bits as the NumPy code.

The definition is tollgate/features/windows (entity_entries, window_values) with
tollgate/features/assemble.py. This module checks the values, finds the windows' bounds,
sums the windows, and fills the columns of amount, calendar and the aggregates that all
windows share. Other integers that features need (`DEMANDS`) are returned as they are.

It does not cover `ewm` and `weight`. `Windows.read` returns None for a batch whose values
are unusual although their checksums are right (events or tiles out of order, times too
far apart, moments of more than 128 bits): then the NumPy code reads the batch.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
)
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memset

import sys

import numpy as np

if sys.byteorder != "little":
    raise ImportError("entity values are little-endian, this machine is not")

# Kinds of demands, in the order of their numbers here.
DEMANDS = (
    "sum", "known", "min", "max", "last", "time_since_last", "sessions", "distinct",
    "variance", "slope", "sketch",
)
# Kinds of columns, in the order of their numbers here.
COLUMNS = ("amount", "weekend", "night", "count", "sum", "mean", "flagged", "share")

cdef enum Kind:
    SUM, KNOWN, MIN, MAX, LAST, AGE, SESSIONS, DISTINCT, VARIANCE, SLOPE, SKETCH

cdef enum Op:
    OP_AMOUNT, OP_WEEKEND, OP_NIGHT, OP_COUNT, OP_SUM, OP_MEAN, OP_FLAGGED, OP_SHARE

cdef enum Bit:  # tollgate.schema.Degraded
    COLD_START = 4
    EVENT_TOO_LATE = 8
    WINDOW_OVERFLOW = 16
    STATE_CORRUPT = 32

cdef enum Flag:
    PURCHASE = 1
    FRAUD = 4
    KNOWN_FRAUD = 7

cdef extern from *:
    """
    #include <string.h>

    /* Sums of n values x, of their times t before an origin, and of products of both. */
    typedef struct {
        int64_t n;
        uint64_t x;  /* modulo 2^64, as NumPy adds them */
        __int128 xx, t, tt, tx;
        int wide;  /* true if a sum does not fit */
    } Moments;

    static void moments_plus(Moments *sums, __int128 *sum, __int128 one) {
        sums->wide |= __builtin_add_overflow(*sum, one, sum);
    }

    static __int128 moments_product(Moments *sums, __int128 a, __int128 b) {
        __int128 product;
        sums->wide |= __builtin_mul_overflow(a, b, &product);
        return product;
    }

    static void moments_add(Moments *sums, int64_t x, int64_t t) {
        sums->n += 1;
        sums->x += (uint64_t)x;
        moments_plus(sums, &sums->xx, (__int128)x * x);
        moments_plus(sums, &sums->t, t);
        moments_plus(sums, &sums->tt, (__int128)t * t);
        moments_plus(sums, &sums->tx, (__int128)t * x);
    }

    static __int128 moments_number(const char *at) {
        __int128 number;
        memcpy(&number, at, sizeof(number));
        return number;
    }

    static void moments_add_squares(Moments *sums, int64_t n, int64_t x, const char *xx) {
        sums->n += n;
        sums->x += (uint64_t)x;
        moments_plus(sums, &sums->xx, moments_number(xx));
    }

    /* The sums of a tile count times from 1970. */
    static void moments_add_times(
        Moments *sums, int64_t n, int64_t x, const char *t_at, const char *tt_at,
        const char *tx_at, int64_t origin
    ) {
        __int128 t = moments_number(t_at), from = -(__int128)origin;
        sums->n += n;
        sums->x += (uint64_t)x;
        moments_plus(sums, &sums->t, t);
        moments_plus(sums, &sums->t, moments_product(sums, from, n));
        moments_plus(sums, &sums->tt, moments_number(tt_at));
        moments_plus(sums, &sums->tt, moments_product(sums, 2 * from, t));
        moments_plus(sums, &sums->tt, moments_product(sums, from * from, n));
        moments_plus(sums, &sums->tx, moments_number(tx_at));
        moments_plus(sums, &sums->tx, moments_product(sums, from, x));
    }

    /* n * sum of ab - sum of a * sum of b, exact and then rounded once. */
    static double moments_rounded(Moments *sums, __int128 ab, __int128 a, __int128 b) {
        __int128 whole = moments_product(sums, ab, sums->n);
        __int128 product = moments_product(sums, a, b);
        sums->wide |= __builtin_sub_overflow(whole, product, &whole);
        return (double)whole;
    }

    static double moments_xx(Moments *sums) {
        return moments_rounded(sums, sums->xx, (int64_t)sums->x, (int64_t)sums->x);
    }

    static double moments_tt(Moments *sums) {
        return moments_rounded(sums, sums->tt, sums->t, sums->t);
    }

    static double moments_tx(Moments *sums) {
        return moments_rounded(sums, sums->tx, sums->t, (int64_t)sums->x);
    }

    /* The place of a number among all float64. */
    static int64_t place_of(double number) {
        int64_t bits;
        memcpy(&bits, &number, sizeof(bits));
        return bits < 0 ? -(bits & INT64_MAX) : bits;
    }
    """
    ctypedef struct Moments:
        int64_t n
        bint wide
    void moments_add(Moments *sums, int64_t x, int64_t t) noexcept nogil
    void moments_add_squares(
        Moments *sums, int64_t n, int64_t x, const char *xx
    ) noexcept nogil
    void moments_add_times(
        Moments *sums, int64_t n, int64_t x, const char *t_at, const char *tt_at,
        const char *tx_at, int64_t origin
    ) noexcept nogil
    double moments_xx(Moments *sums) noexcept nogil
    double moments_tt(Moments *sums) noexcept nogil
    double moments_tx(Moments *sums) noexcept nogil
    int64_t place_of(double number) noexcept nogil

cdef int64_t MISSING = INT64_MIN
cdef int64_t LARGEST = INT64_MAX
cdef int64_t FAR = 1 << 61  # µs: sums of a few such times fit into 64 bits
cdef int64_t LARGE = 1 << 41  # NumPy's moments are of values below
cdef int64_t DAY_US = 86400000000
cdef int64_t NIGHT_END_US = 7 * 3600000000

# Layout of values: docs/contract.md.

cdef packed struct Header:
    uint32_t form
    uint32_t checksum
    uint32_t overflow
    uint32_t count
    int64_t watermark_us
    int64_t dropped_us

cdef packed struct TiledHeader:
    char order[24]
    int64_t base
    uint32_t tiles
    uint32_t labels
    int64_t label_us
    uint64_t label_hash
    int64_t aged_us
    int64_t first_us
    char first_order[24]
    int64_t loaded_us
    char loaded_order[24]

cdef packed struct Newest:
    int64_t value
    int64_t time_us

cdef packed struct Label:
    int64_t time_us
    uint64_t id_hash
    int64_t label_time_us
    uint32_t flags
    uint32_t pad

cdef packed struct Entry:
    int64_t time_us
    char order[24]
    uint32_t cents
    uint32_t flags
    int64_t label_time_us

cdef packed struct Tile:
    uint32_t index
    uint32_t count

cdef packed struct Wide:
    int64_t number

cdef packed struct Narrow:
    uint32_t number

cdef enum:
    ORDER_BYTES = 24

cdef char[24] NO_ORDER  # the order key of a tile: before all others
memset(NO_ORDER, 0, ORDER_BYTES)


cdef struct Entity:
    int64_t entry_bytes
    int64_t delay_us
    int64_t horizon_us
    int64_t longest_us
    int64_t edge_us
    int first_window  # in `width_us` and `rounding_us` of all entities
    int last_window
    bint tiled
    int64_t prefix_bytes  # what precedes the tiles
    int64_t record_bytes
    int64_t tile_us
    int sum_at  # byte of a number in a tile; 0: it has none
    int flagged_at
    int first_demand
    int last_demand

cdef struct Value:
    # Positions count the tiles, then the entries.
    const char *newest
    const char *tiles
    const char *labels
    const char *entries
    int64_t tile_count
    int64_t label_count
    int64_t count  # tiles and entries
    int64_t base
    int64_t watermark_us
    int64_t dropped_us
    int64_t label_us
    uint32_t overflow
    bint opened
    bint corrupt

cdef struct Demand:
    int kind
    int column  # -1: the amount
    int window
    int64_t parameter
    int tile_at  # byte of its number in a tile
    int sum_at  # of moments, those of their other numbers
    int known_at
    int times_at
    int squares_at  # of the times

cdef struct Column:
    int column
    int op
    int window  # among the windows of all entities
    bint clipped
    double low
    double high

cdef struct Sums:
    int64_t begin
    int64_t count
    uint64_t cents  # modulo 2^64, as NumPy adds them
    int64_t fraud

cdef struct Batch:
    int64_t rows
    int64_t keys
    const char **data
    int64_t *size
    int *entity
    Value *values
    int64_t *key  # of each row and entity
    Sums *sums
    int64_t *table  # to count distinct values
    int64_t places
    int64_t low_us  # of all times
    int64_t high_us
    bint corrupt
    bint overflow
    bint wide  # NumPy must compute the moments

cdef struct Row:
    int64_t time_us
    const char *order
    int64_t own  # one past the last position up to the row's own (time, id)
    int64_t end  # one past the windows' last


cdef inline int64_t _number(const char *at) noexcept nogil:
    return (<const Wide *>at).number


cdef inline int64_t _counted(const char *at) noexcept nogil:
    return (<const Narrow *>at).number


cdef inline int64_t _minus(int64_t a, int64_t b) noexcept nogil:
    """Subtract modulo 2^64: numbers of a value may be any."""
    return <int64_t>(<uint64_t>a - <uint64_t>b)


cdef inline int64_t _floor(int64_t time_us, int64_t width_us) noexcept nogil:
    """Round down to a multiple of a width."""
    cdef int64_t rest
    if width_us == 1:
        return time_us
    rest = time_us % width_us
    return time_us - rest - (width_us if rest < 0 else 0)


cdef inline int64_t _quotient(int64_t time_us, int64_t width_us) noexcept nogil:
    """Divide and round down."""
    cdef int64_t quotient = time_us // width_us
    return quotient - (time_us % width_us < 0)


cdef inline const Tile *_tile(
    const Value *value, const Entity *entity, int64_t at
) noexcept nogil:
    return <const Tile *>(value.tiles + at * entity.record_bytes)


cdef inline const Entry *_entry(
    const Value *value, const Entity *entity, int64_t at
) noexcept nogil:
    return <const Entry *>(value.entries + (at - value.tile_count) * entity.entry_bytes)


cdef inline int64_t _time(
    const Value *value, const Entity *entity, int64_t at
) noexcept nogil:
    cdef uint64_t end
    if at >= value.tile_count:
        return _entry(value, entity, at).time_us
    end = <uint64_t>value.base + _tile(value, entity, at).index
    return min(<int64_t>(end * <uint64_t>entity.tile_us), value.dropped_us)


cdef inline const char *_order(
    const Value *value, const Entity *entity, int64_t at
) noexcept nogil:
    if at < value.tile_count:
        return &NO_ORDER[0]
    return &_entry(value, entity, at).order[0]


cdef inline int64_t _after(
    const Value *value, const Entity *entity, int64_t time_us, int64_t count
) noexcept nogil:
    """Find the first of `count` positions whose time is later; `count` if none is."""
    cdef int64_t low = 0, high = count, middle
    if not count or _time(value, entity, count - 1) <= time_us:
        return count
    while low < high:
        middle = (low + high) // 2
        if _time(value, entity, middle) <= time_us:
            low = middle + 1
        else:
            high = middle
    return low


cdef int64_t _tile_of(
    const Value *value, const Entity *entity, int64_t time_us
) noexcept nogil:
    """Find the tile that contains a time; -1 where it has left every window."""
    cdef int64_t index, low = 0, high = value.tile_count, middle
    index = _minus(0, _quotient(_minus(0, time_us), entity.tile_us))
    index = _minus(index, value.base)
    while low < high:
        middle = (low + high) // 2
        if _tile(value, entity, middle).index < index:
            low = middle + 1
        else:
            high = middle
    if low == value.tile_count:
        return -1
    return low if time_us > _minus(value.watermark_us, entity.horizon_us) else -1


cdef uint32_t _checksum(const char *data, int64_t size) noexcept nogil:
    """Add up the 32-bit words; a quarter at a time, which takes half the time."""
    cdef uint32_t first = 0, second = 0, third = 0, fourth = 0
    cdef const Narrow *words = <const Narrow *>data
    cdef int64_t at, count = size // 4, step = count // 4
    for at in range(step):
        first += words[at].number
        second += words[at + step].number
        third += words[at + 2 * step].number
        fourth += words[at + 3 * step].number
    for at in range(4 * step, count):
        first += words[at].number
    return first + second + third + fourth


cdef void _open(
    Value *value, const Entity *entity, const char *data, int64_t size
) noexcept nogil:
    """
    Check a value's bytes and find its parts; a damaged one is marked and empty.

    The fields of `value` are 0 before.
    """
    cdef const Header *head = <const Header *>data
    cdef const TiledHeader *more = NULL
    cdef int64_t before = sizeof(Header), tile_bytes = 0
    cdef uint32_t form = <uint32_t>(entity.entry_bytes << 8 | (2 if entity.tiled else 1))
    value.opened = True
    value.label_us = MISSING
    if size == 0:
        return
    value.corrupt = True
    if size % 8 or size < (entity.prefix_bytes if entity.tiled else before):
        return
    if head.form != form:
        return
    if entity.tiled:
        more = <const TiledHeader *>(data + before)
        tile_bytes = more.tiles * entity.record_bytes
        tile_bytes += -tile_bytes & 7
        before = entity.prefix_bytes + tile_bytes + more.labels * <int64_t>sizeof(Label)
    if before + head.count * entity.entry_bytes != size:
        return
    if head.checksum != <uint32_t>(_checksum(data, size) - head.checksum):
        return
    value.corrupt = False
    value.entries = data + before
    value.count = head.count
    value.watermark_us = head.watermark_us
    value.dropped_us = head.dropped_us
    value.overflow = head.overflow
    if entity.tiled:
        value.newest = data + sizeof(Header) + sizeof(TiledHeader)
        value.tiles = data + entity.prefix_bytes
        value.labels = value.tiles + tile_bytes
        value.tile_count = more.tiles
        value.label_count = more.labels
        value.count += more.tiles
        value.base = more.base
        value.label_us = more.label_us


cdef bint _ascending(const Value *value, const Entity *entity) noexcept nogil:
    """Test whether tiles and events are in the order of (time, id)."""
    cdef int64_t at, time_us, before_us = MISSING
    cdef const char *entry = value.entries
    cdef uint32_t index = 0
    for at in range(value.tile_count):
        time_us = _time(value, entity, at)
        if time_us < before_us or _tile(value, entity, at).index < index:
            return False
        before_us, index = time_us, _tile(value, entity, at).index
    for at in range(value.count - value.tile_count):
        time_us = _number(entry)
        if time_us <= before_us:
            if time_us < before_us or (
                at
                and memcmp(entry - entity.entry_bytes + 8, entry + 8, ORDER_BYTES) > 0
            ):
                return False
        before_us = time_us
        entry += entity.entry_bytes
    return True


cdef void _find(
    Row *row, const Value *value, const Entity *entity
) noexcept nogil:
    """Find the row's own position and the windows' end."""
    cdef int64_t own = _after(value, entity, row.time_us, value.count)
    cdef int64_t until_us
    while own and _time(value, entity, own - 1) == row.time_us and memcmp(
        _order(value, entity, own - 1), row.order, ORDER_BYTES
    ) > 0:
        own -= 1
    row.own = row.end = own
    if entity.delay_us:
        until_us = _floor(row.time_us - entity.delay_us, entity.edge_us)
        row.end = _after(value, entity, until_us, value.count)


cdef void _sum_windows(
    Sums *sums,
    const Row *row,
    const Value *value,
    const Entity *entity,
    const int64_t *width_us,
    const int64_t *rounding_us,
) noexcept nogil:
    """Sum each window; each contains the one before it, so no event is read twice."""
    cdef int64_t at = row.end, after_us, bought, count = 0, fraud = 0, tile
    cdef int64_t tiles = value.tile_count
    cdef uint64_t cents = 0
    cdef int window
    cdef const Entry *entry
    cdef const Tile *numbers
    cdef const Label *label
    for window in range(entity.last_window - entity.first_window):
        after_us = row.time_us - entity.delay_us - width_us[window]
        after_us = _floor(after_us, rounding_us[window])
        while at > tiles:
            entry = _entry(value, entity, at - 1)
            if entry.time_us <= after_us:
                break
            at -= 1
            bought = entry.flags & PURCHASE
            count += bought
            cents += <uint64_t>(bought * entry.cents)
            if (entry.flags & KNOWN_FRAUD) == KNOWN_FRAUD:
                fraud += entry.label_time_us <= row.time_us
        while 0 < at <= tiles and _time(value, entity, at - 1) > after_us:
            at -= 1
            numbers = _tile(value, entity, at)
            count += numbers.count
            if entity.sum_at:
                cents += <uint64_t>_number(<const char *>numbers + entity.sum_at)
            if entity.flagged_at:
                fraud += _counted(<const char *>numbers + entity.flagged_at)
        sums[window].begin = at
        sums[window].count = count
        sums[window].cents = cents
        sums[window].fraud = fraud
    if not value.tile_count:
        return
    for at in range(value.label_count):
        label = <const Label *>(value.labels + at * <int64_t>sizeof(Label))
        if label.flags & FRAUD and label.label_time_us <= row.time_us:
            tile = _tile_of(value, entity, label.time_us)
            if 0 <= tile < row.end:
                for window in range(entity.last_window - entity.first_window):
                    sums[window].fraud += tile >= sums[window].begin


cdef uint32_t _bits(
    const Row *row, const Value *value, const Entity *entity
) noexcept nogil:
    """Return the Degraded bits, but for labels that left a value with tiles."""
    cdef int64_t begin_us = row.time_us - entity.longest_us, at = 0, upto = 0
    cdef uint32_t bits = 0
    while at < row.own and upto < 2:
        if at < value.tile_count:
            upto += _tile(value, entity, at).count
        else:
            upto += _entry(value, entity, at).flags & PURCHASE
        at += 1
    if upto <= 1:
        bits |= COLD_START
    if begin_us < _minus(value.watermark_us, entity.horizon_us):
        bits |= EVENT_TOO_LATE
    # With tiles, these are folded, not dropped.
    if value.overflow and not entity.tiled and begin_us < value.dropped_us:
        bits |= WINDOW_OVERFLOW
    if value.corrupt:
        bits |= STATE_CORRUPT
    return bits


cdef inline int64_t _read(const Entry *entry, int column) noexcept nogil:
    """Return the amount or a column of a purchase; MISSING if it has none."""
    if not entry.flags & PURCHASE:
        return MISSING
    if column < 0:
        return entry.cents
    return _number(<const char *>entry + sizeof(Entry) + 8 * column)


cdef int64_t _nth_newest(
    const Row *row,
    const Value *value,
    const Entity *entity,
    const Demand *demand,
    int64_t begin,
    uint32_t *bits,
) noexcept nogil:
    """
    Read the n-th newest entry before the row's own: its value, or its age in µs.

    Tiles know the newest folded one alone: a row that may need another one is marked.
    """
    cdef int64_t at = row.own, found, left = max(demand.parameter, 1), tile
    cdef const Newest *newest
    if at and _time(value, entity, at - 1) == row.time_us and memcmp(
        _order(value, entity, at - 1), row.order, ORDER_BYTES
    ) == 0:
        at -= 1
    at = min(at, row.end)
    while at > begin and at > value.tile_count:
        at -= 1
        found = _read(_entry(value, entity, at), demand.column)
        if found != MISSING:
            left -= 1
            if not left:
                if demand.kind == LAST:
                    return found
                return row.time_us - _entry(value, entity, at).time_us
    if not value.tile_count:
        return MISSING
    newest = <const Newest *>value.newest + (1 + demand.column)
    if newest.value == MISSING:
        return MISSING
    tile = _tile_of(value, entity, newest.time_us)
    if not begin <= tile < at:
        return MISSING
    if left > 1:
        bits[0] |= EVENT_TOO_LATE
        return MISSING
    if demand.kind == LAST:
        return newest.value
    return row.time_us - _time(value, entity, tile)


cdef int64_t _moment(
    const Row *row,
    const Value *value,
    const Entity *entity,
    const Demand *demand,
    int64_t begin,
    bint *wide,
) noexcept nogil:
    """Compute n² times the variance of a window, or its slope per µs: their places."""
    cdef Moments sums
    cdef int64_t at, one, count, total
    cdef const char *tile
    cdef const Entry *entry
    cdef double spread
    memset(&sums, 0, sizeof(Moments))
    for at in range(begin, min(row.end, value.tile_count)):
        tile = <const char *>_tile(value, entity, at)
        count, total = _counted(tile + demand.known_at), _number(tile + demand.sum_at)
        if demand.kind == VARIANCE:
            moments_add_squares(&sums, count, total, tile + demand.tile_at)
        else:
            moments_add_times(
                &sums,
                count,
                total,
                tile + demand.times_at,
                tile + demand.squares_at,
                tile + demand.tile_at,
                row.time_us,
            )
    for at in range(max(begin, value.tile_count), row.end):
        entry = _entry(value, entity, at)
        one = _read(entry, demand.column)
        if one != MISSING:
            wide[0] |= not -LARGE < one < LARGE
            moments_add(&sums, one, entry.time_us - row.time_us)
    if demand.kind == VARIANCE:
        spread = moments_xx(&sums)
        wide[0] |= sums.wide
        return MISSING if sums.n < 2 else place_of(spread)
    spread = moments_tt(&sums)
    if spread == 0.0:
        wide[0] |= sums.wide
        return MISSING
    spread = moments_tx(&sums) / spread
    wide[0] |= sums.wide
    return place_of(spread)


cdef inline void _raise_rank(uint8_t *ranks, int register, uint8_t rank) noexcept nogil:
    if ranks[register] < rank:
        ranks[register] = rank


cdef int64_t _sketch(
    const Row *row,
    const Value *value,
    const Entity *entity,
    const Demand *demand,
    int64_t begin,
) noexcept nogil:
    """Sketch the values of a window (tollgate/features/windows/distinct_values.py)."""
    cdef uint8_t[128] ranks
    cdef const uint8_t *packed
    cdef int64_t at, hashed, total = 0, empty = 0, highest = 0
    cdef int register, rank
    cdef uint32_t high
    memset(ranks, 0, 128)
    for at in range(begin, min(row.end, value.tile_count)):
        packed = <const uint8_t *>_tile(value, entity, at) + demand.tile_at
        for register in range(0, 128, 2):
            _raise_rank(ranks, register, packed[register // 2] & 0xF)
            _raise_rank(ranks, register + 1, packed[register // 2] >> 4)
    for at in range(max(begin, value.tile_count), row.end):
        hashed = _read(_entry(value, entity, at), demand.column)
        if hashed == MISSING:
            continue
        high, rank = <uint32_t>(<uint64_t>hashed >> 32), 1
        while rank < 15 and high >> 31 == 0:
            high <<= 1
            rank += 1
        _raise_rank(ranks, hashed & 127, rank)
    for register in range(128):
        total += 1 << (15 - ranks[register])
        empty += ranks[register] == 0
        highest += ranks[register] == 15
    return total << 16 | empty << 8 | highest


cdef int64_t _compute(
    const Row *row,
    const Value *value,
    const Entity *entity,
    const Demand *demand,
    int64_t begin,
    int64_t *table,
    int64_t places,
    uint32_t *bits,
    bint *wide,
) noexcept nogil:
    """Compute one number of one window; set the Degraded bits that it brings."""
    cdef int64_t at, one, total = 0, place
    cdef int64_t before_us = 0
    cdef int kind = demand.kind
    cdef const char *tile
    if kind == LAST or kind == AGE:
        return _nth_newest(row, value, entity, demand, begin, bits)
    if kind == VARIANCE or kind == SLOPE:
        return _moment(row, value, entity, demand, begin, wide)
    if kind == SKETCH:
        return _sketch(row, value, entity, demand, begin)
    if kind == MIN:
        total = LARGEST
    elif kind == MAX:
        total = MISSING
    elif kind == DISTINCT:
        while places > 16 and places // 4 >= row.end - begin:
            places //= 2
        for place in range(places):
            table[place] = MISSING
    for at in range(begin, min(row.end, value.tile_count)):
        tile = <const char *>_tile(value, entity, at) + demand.tile_at
        if kind == KNOWN:
            total += _counted(tile)
        elif kind == SUM:
            total = <int64_t>(<uint64_t>total + <uint64_t>_number(tile))
        elif kind == MIN:
            total = min(total, _number(tile))
        elif kind == MAX:
            total = max(total, _number(tile))
    for at in range(max(begin, value.tile_count), row.end):
        one = _read(_entry(value, entity, at), demand.column)
        if one == MISSING:
            continue
        if kind == KNOWN:
            total += 1
        elif kind == SUM:
            total = <int64_t>(<uint64_t>total + <uint64_t>one)
        elif kind == MIN:
            total = min(total, one)
        elif kind == MAX:
            total = max(total, one)
        elif kind == SESSIONS:
            place = _entry(value, entity, at).time_us
            total += not total or place - before_us > demand.parameter
            before_us = place
        else:
            # Multiplicative hashing; half of the places stay free.
            place = <int64_t>((<uint64_t>one * <uint64_t>0x9E3779B97F4A7C15) >> 20)
            place &= places - 1
            while table[place] != MISSING and table[place] != one:
                place = (place + 1) & (places - 1)
            if table[place] == MISSING:
                table[place] = one
                total += 1
    return MISSING if kind == MIN and total == LARGEST else total


cdef double _column(
    const Column *column, const Sums *sums, int64_t cents, int64_t time_us
) noexcept nogil:
    """Compute a column with the operations of tollgate/features/assemble.py."""
    cdef const Sums *own = sums + column.window
    cdef int op = column.op
    cdef int64_t whole
    cdef double found
    if op == OP_AMOUNT:
        found = <double>cents / 100.0
    elif op == OP_WEEKEND:
        whole = _quotient(time_us, DAY_US) + 3
        whole = whole - 7 * _quotient(whole, 7)
        found = 1.0 if whole >= 5 else 0.0
    elif op == OP_NIGHT:
        found = 1.0 if time_us - _floor(time_us, DAY_US) < NIGHT_END_US else 0.0
    elif op == OP_COUNT:
        found = <double>own.count
    elif op == OP_SUM:
        found = <double><int64_t>own.cents / 100.0
    elif op == OP_FLAGGED:
        found = <double>own.fraud
    elif op == OP_MEAN:
        whole = <int64_t>(<uint64_t>max(own.count, 1) * 100)
        found = <double><int64_t>own.cents / <double>whole
    else:
        found = <double>own.fraud / <double>max(own.count, 1)
    if column.clipped:  # of equal numbers, NumPy returns the bound
        found = found if found > column.low else column.low
        found = found if found < column.high else column.high
    return found


cdef void *_allocated(size_t size) except NULL:
    cdef void *found = malloc(size if size else 1)
    if found == NULL:
        raise MemoryError
    return found


cdef class Windows:
    """
    Read windows of one product.

    Args:
        features: Number of columns of the vector.
        entities: Per entity a dict: `entry_bytes`, `delay_us`, `horizon_us`,
            `longest_us`, `edge_us`, `windows` (pairs of width and rounding, µs, in
            ascending order), and for one with tiles `prefix_bytes`, `record_bytes`,
            `tile_us`, `sum_at`, `flagged_at`.
        demands: Per entity (kind, column, window, parameter, bytes in a tile) each: of
            its number, and of a moment's sum, count, times, and squares of times.
        columns: (column, kind, entity, window, range or None) each.
    """

    cdef Entity *_entities
    cdef int64_t *_width_us
    cdef int64_t *_rounding_us
    cdef Demand *_demands
    cdef Column *_columns
    cdef int _entity_count, _window_count, _demand_count, _column_count, _features
    cdef int64_t _back_us  # furthest look back of a row, and the widest rounding
    cdef bint _distinct

    def __cinit__(self, features, entities, demands, columns):
        cdef Entity *entity
        cdef int window = 0, number = 0, at
        self._features = features
        self._entity_count = len(entities)
        self._column_count = len(columns)
        self._window_count = sum(len(one["windows"]) for one in entities)
        self._demand_count = sum(map(len, demands))
        self._entities = <Entity *>_allocated(len(entities) * sizeof(Entity))
        self._width_us = <int64_t *>_allocated(self._window_count * 8)
        self._rounding_us = <int64_t *>_allocated(self._window_count * 8)
        self._demands = <Demand *>_allocated(self._demand_count * sizeof(Demand))
        self._columns = <Column *>_allocated(len(columns) * sizeof(Column))
        memset(self._entities, 0, len(entities) * sizeof(Entity))
        furthest_us = widest_us = 0
        for at, (one, own) in enumerate(zip(entities, demands, strict=True)):
            entity = &self._entities[at]
            entity.entry_bytes = one["entry_bytes"]
            entity.delay_us = one["delay_us"]
            entity.horizon_us = one["horizon_us"]
            entity.longest_us = one["longest_us"]
            entity.edge_us = one["edge_us"]
            entity.tiled = "tile_us" in one
            if entity.tiled:
                entity.prefix_bytes = one["prefix_bytes"]
                entity.record_bytes = one["record_bytes"]
                entity.tile_us = one["tile_us"]
                entity.sum_at = one["sum_at"]
                entity.flagged_at = one["flagged_at"]
            entity.first_window = window
            for width_us, rounding_us in one["windows"]:
                self._width_us[window] = width_us
                self._rounding_us[window] = rounding_us
                furthest_us = max(furthest_us, one["delay_us"] + width_us)
                widest_us = max(widest_us, rounding_us)
                window += 1
            entity.last_window = window
            entity.first_demand = number
            for kind, column, place, parameter, tile_at in own:
                self._distinct |= kind == "distinct"
                self._demands[number] = Demand(
                    kind=DEMANDS.index(kind),
                    column=column,
                    window=range(self._window_count)[entity.first_window + place],
                    parameter=parameter,
                    tile_at=tile_at[0],
                    sum_at=tile_at[1],
                    known_at=tile_at[2],
                    times_at=tile_at[3],
                    squares_at=tile_at[4],
                )
                number += 1
            entity.last_demand = number
            widest_us = max(widest_us, one["edge_us"])
        self._back_us = furthest_us + widest_us
        for at, (column, kind, place, of, limits) in enumerate(columns):
            low, high = limits or (0.0, 0.0)
            number = COLUMNS.index(kind)
            window = 0  # amount and calendar read none
            if number >= OP_COUNT:
                window = self._entities[range(len(entities))[place]].first_window + of
            self._columns[at] = Column(
                column=range(features)[column],
                op=number,
                window=range(self._window_count)[window],
                clipped=limits is not None,
                low=low,
                high=high,
            )

    def __dealloc__(self):
        free(self._entities)
        free(self._width_us)
        free(self._rounding_us)
        free(self._demands)
        free(self._columns)

    def read(
        self,
        values,
        first_key,
        code,
        const uint8_t[::1] entries,
        const int64_t[:] cents,
        const int64_t[:] time_us,
    ):
        """
        Read a batch of N purchases.

        Args:
            values: K packed values, or empty bytes.
            first_key: First value of each entity, then K.
            code: Per entity, the value of each row, counted from the entity's first.
            entries: The rows' own entries, packed.
            cents: Amounts.
            time_us: Event times.

        Returns:
            Features float64 [N, F], of which the named columns are set;
            Degraded bits uint32 [N]; demands int64 [D, N]; True if a value is damaged.
            None for a batch that the loop does not cover.
        """
        cdef int64_t rows = time_us.shape[0], keys = len(values), at, first, last
        cdef int entity
        cdef int status = -1
        cdef int64_t most = 0
        cdef const int64_t[:] own
        cdef tuple held = tuple(values)  # other threads may run during the loop
        cdef object value
        features = np.empty((rows, self._features))
        degraded = np.zeros(rows, np.uint32)
        answers = np.empty((self._demand_count, rows), np.int64)
        cdef double[:, ::1] features_view = features
        cdef uint32_t[::1] degraded_view = degraded
        cdef int64_t[:, ::1] answers_view = answers
        cdef Batch batch
        if (
            len(first_key) != self._entity_count + 1
            or len(code) != self._entity_count
            or first_key[self._entity_count] != keys
            or not rows
            or cents.shape[0] != rows
            or entries.shape[0] != rows * <int64_t>sizeof(Entry)
        ):
            return None
        memset(&batch, 0, sizeof(Batch))
        try:
            batch.data = <const char **>_allocated(keys * sizeof(char *))
            batch.size = <int64_t *>_allocated(keys * sizeof(int64_t))
            batch.entity = <int *>_allocated(keys * sizeof(int))
            batch.values = <Value *>_allocated(keys * sizeof(Value))
            memset(batch.values, 0, keys * sizeof(Value))
            batch.key = <int64_t *>_allocated(
                rows * self._entity_count * sizeof(int64_t)
            )
            batch.sums = <Sums *>_allocated(self._window_count * sizeof(Sums))
            for entity in range(self._entity_count):
                first, last, own = first_key[entity], first_key[entity + 1], code[entity]
                if not 0 <= first <= last <= keys or own.shape[0] != rows:
                    return None
                for at in range(first, last):
                    value = held[at]
                    if not PyBytes_CheckExact(value):
                        return None
                    batch.data[at] = PyBytes_AS_STRING(value)
                    batch.size[at] = PyBytes_GET_SIZE(value)
                    batch.entity[at] = entity
                    most = max(most, batch.size[at])
                for at in range(rows):
                    if not 0 <= own[at] < last - first:
                        return None
                    batch.key[at * self._entity_count + entity] = first + own[at]
            batch.rows, batch.keys = rows, keys
            if self._distinct:
                batch.places = 16
                while batch.places < 2 * (most // <int64_t>sizeof(Entry)):
                    batch.places *= 2
                batch.table = <int64_t *>_allocated(batch.places * sizeof(int64_t))
            with nogil:
                status = self._read_all(
                    &batch,
                    entries=entries,
                    cents=cents,
                    time_us=time_us,
                    features=features_view,
                    degraded=degraded_view,
                    answers=answers_view,
                )
        finally:
            free(batch.data)
            free(batch.size)
            free(batch.entity)
            free(batch.values)
            free(batch.key)
            free(batch.sums)
            free(batch.table)
        if status < 0:
            return None
        return features, degraded, answers, status > 0

    cdef bint _open(self, Batch *batch, int64_t key) noexcept nogil:
        """Open a value; False if NumPy must read the batch."""
        cdef Value *value = &batch.values[key]
        cdef Entity *entity = &self._entities[batch.entity[key]]
        _open(value, entity, batch.data[key], batch.size[key])
        batch.corrupt |= value.corrupt
        batch.overflow |= value.overflow > 0
        if value.count:
            batch.low_us = min(batch.low_us, _time(value, entity, 0))
            batch.high_us = max(batch.high_us, _time(value, entity, value.count - 1))
        # NumPy refuses a batch whose entities do not fit into one axis of 63 bits.
        return (
            _ascending(value, entity)
            and batch.low_us >= -FAR
            and batch.high_us <= FAR
            and batch.high_us - batch.low_us + self._back_us + 2
            <= LARGEST // (batch.keys + 1)
        )

    cdef int _read_all(
        self,
        Batch *batch,
        const uint8_t[::1] entries,
        const int64_t[:] cents,
        const int64_t[:] time_us,
        double[:, ::1] features,
        uint32_t[::1] degraded,
        int64_t[:, ::1] answers,
    ) noexcept nogil:
        """Fill the results; return 1 if a value is damaged, -1 if NumPy must read."""
        cdef int64_t at, key
        cdef int number, place
        cdef Row row
        cdef Value *value
        cdef Entity *entity
        cdef Demand *demand
        cdef Column *column
        batch.low_us, batch.high_us = LARGEST, MISSING
        for at in range(batch.rows):
            batch.low_us = min(batch.low_us, time_us[at])
            batch.high_us = max(batch.high_us, time_us[at])
        if batch.low_us < -FAR or batch.high_us > FAR:
            return -1
        for at in range(batch.rows):
            row.time_us = time_us[at]
            row.order = <const char *>&entries[at * <int64_t>sizeof(Entry)] + 8
            for number in range(self._entity_count):
                entity = &self._entities[number]
                key = batch.key[at * self._entity_count + number]
                value = &batch.values[key]
                # Just before it is read: a value fits into the fastest cache, and the
                # values of a batch do not.
                if not value.opened and not self._open(batch, key):
                    return -1
                _find(&row, value, entity)
                _sum_windows(
                    &batch.sums[entity.first_window],
                    &row,
                    value,
                    entity,
                    &self._width_us[entity.first_window],
                    &self._rounding_us[entity.first_window],
                )
                degraded[at] |= _bits(&row, value, entity)
                for place in range(entity.first_demand, entity.last_demand):
                    demand = &self._demands[place]
                    answers[place, at] = _compute(
                        &row,
                        value,
                        entity,
                        demand,
                        batch.sums[demand.window].begin,
                        batch.table,
                        batch.places,
                        &degraded[at],
                        &batch.wide,
                    )
            for place in range(self._column_count):
                column = &self._columns[place]
                features[at, column.column] = _column(
                    column, batch.sums, cents[at], row.time_us
                )
        if batch.wide:
            return -1
        for key in range(batch.keys):
            if not batch.values[key].opened:
                return -1
        if batch.overflow:
            for at in range(batch.rows * self._entity_count):
                value = &batch.values[batch.key[at]]
                if time_us[at // self._entity_count] < value.label_us:
                    degraded[at // self._entity_count] |= EVENT_TOO_LATE
        return batch.corrupt

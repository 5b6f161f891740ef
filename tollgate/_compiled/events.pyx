# cython: language_level=3, wraparound=False
"""
Check the rows of a batch, and pack its events for the store.

Each function gives the bits of the NumPy code that calls it, which is the definition.
It returns None for input that it does not cover: ids that are no bytes, arrays of
another type or length, a bad row.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.long cimport PyLong_AsLongLongAndOverflow, PyLong_CheckExact
from libc.math cimport fabs, rint
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.string cimport memcpy, memset

import hashlib

cdef object _copy = hashlib.blake2b(digest_size=8).copy  # as in entity_entries.py

# Layouts: ENTRY of entity_entries.py, ARGUMENTS of store_events.py.
cdef enum:
    ENTRY_BYTES = 48
    ORDER_AT = 8
    PREFIX = 15
    HASH_AT = 24
    CENTS_AT = 32
    FLAGS_AT = 36
    ARGUMENT_BYTES = 24
    EVENTS_AT = 16
    LINE_BYTES = 22  # of the protocol: a type, a number of 64 bits, CR LF


cdef bint _are_ids(list ids, Py_ssize_t count) except -1:
    """Return whether a list holds that many bytes objects."""
    if len(ids) != count:
        return False
    for one in ids:
        if not PyBytes_CheckExact(one):
            return False
    return True


cdef bint _are_columns(list columns, Py_ssize_t count) except -1:
    """Return whether a list holds lists of that many bytes objects each."""
    for one in columns:
        if type(one) is not list or not _are_ids(<list>one, count):
            return False
    return True


def check_rows(
    list columns,
    amount,
    time_us,
    *,
    int64_t first_us,
    int64_t last_us,
    Py_ssize_t max_id_bytes,
    double max_cents,
    double tolerance,
    int64_t[::1] cents,
):
    """
    Check rows, and write their amounts as cents; stop at the first that may be bad.

    Args:
        columns: Id columns; N each.
        amount: float64 [N]; None for a product without money.
        time_us: int64 [N].
        first_us: The earliest time.
        last_us: The latest time.
        max_id_bytes: Size of the longest id.
        max_cents: The largest amount.
        tolerance: How far an amount may be from whole cents.
        cents: [N], written.

    Returns:
        True if every row is good, else None; `cents` is then worth nothing.
    """
    cdef const int64_t[:] times
    cdef const double[:] amounts
    cdef Py_ssize_t rows = len(cents), row, size, at
    cdef const char *text
    cdef char high
    cdef double exact, rounded
    try:
        times = time_us
        if amount is not None:
            amounts = amount
    except (TypeError, ValueError):
        return None
    if len(times) != rows or not _are_columns(columns, rows):
        return None
    for column in columns:
        for one in <list>column:
            size = PyBytes_GET_SIZE(one)
            if not 0 < size <= max_id_bytes:
                return None
            text = PyBytes_AS_STRING(one)
            high = 0
            for at in range(size):
                high |= text[at]
            if high & 0x80:
                try:
                    (<bytes>one).decode()
                except UnicodeDecodeError:
                    return None
    for row in range(rows):
        if not first_us <= times[row] <= last_us:
            return None
    if amount is None:
        return True
    if len(amounts) != rows:
        return None
    for row in range(rows):
        exact = amounts[row] * 100.0
        if not 0.0 <= exact <= max_cents:
            return None
        rounded = rint(exact)
        if fabs(exact - rounded) > tolerance:
            return None
        cents[row] = <int64_t>rounded
    return True


def fill_rows(
    uint8_t[::1] packed,
    list columns,
    time_us,
    cents,
    mixed,
    *,
    Py_ssize_t max_id_bytes,
    tuple places,
):
    """
    Write times, cents, ids and fingerprints into the rows of the context.

    Args:
        packed: N rows of the context; written.
        columns: Id columns; N each.
        time_us: int64 [N].
        cents: int64 [N].
        mixed: Sum of the mixed declared fields per row, int64 [N]; None without any.
        max_id_bytes: Size of the slot of an id.
        places: Byte of time, cents and fingerprint, then of length and slot of each id.

    Returns:
        True, or None if nothing is written.
    """
    cdef const int64_t[:] times, amounts, sums
    cdef Py_ssize_t ids = len(columns), rows, width, row, at, size, length, written
    cdef Py_ssize_t place[3]
    cdef int64_t number
    cdef uint16_t shown
    cdef uint8_t *start
    cdef char *text
    cdef bytes message, digest
    try:
        times, amounts = time_us, cents
        if mixed is not None:
            sums = mixed
    except (TypeError, ValueError):
        return None
    rows = len(times)
    if rows == 0 or len(packed) % rows or len(places) != 3 + 2 * ids:
        return None
    if len(amounts) != rows or (mixed is not None and len(sums) != rows):
        return None
    if not _are_columns(columns, rows) or not 0 <= max_id_bytes < 65536:
        return None
    width = len(packed) // rows
    for at in range(len(places)):
        size = max_id_bytes if at > 3 and not at % 2 else 8 if at < 3 else 2
        if not 0 <= <Py_ssize_t>places[at] <= width - size:
            return None
    for at in range(3):
        place[at] = places[at]
    for row in range(rows):
        size = 8 * (ids + 3)
        for column in columns:
            size += PyBytes_GET_SIZE((<list>column)[row])
        message = PyBytes_FromStringAndSize(NULL, size)
        text = PyBytes_AS_STRING(message)
        start = &packed[row * width]
        written = 8 * (ids + 3)
        for at in range(ids):
            one = (<list>columns[at])[row]
            length = PyBytes_GET_SIZE(one)
            number = length
            memcpy(text + 8 * at, &number, 8)
            memcpy(text + written, PyBytes_AS_STRING(one), length)
            written += length
            shown = min(length, max_id_bytes)
            memcpy(start + <Py_ssize_t>places[3 + 2 * at], &shown, 2)
            memcpy(
                start + <Py_ssize_t>places[4 + 2 * at], PyBytes_AS_STRING(one), shown
            )
            memset(
                start + <Py_ssize_t>places[4 + 2 * at] + shown, 0, max_id_bytes - shown
            )
        number = amounts[row]
        memcpy(text + 8 * ids, &number, 8)
        memcpy(start + place[1], &number, 8)
        number = times[row]
        memcpy(text + 8 * (ids + 1), &number, 8)
        memcpy(start + place[0], &number, 8)
        number = 0 if mixed is None else sums[row]
        memcpy(text + 8 * (ids + 2), &number, 8)
        digest = _hash(message)
        memcpy(start + place[2], PyBytes_AS_STRING(digest), 8)
    return True


cdef bytes _hash(bytes content):
    state = _copy()
    state.update(content)
    return state.digest()


def entries(ids, time_us, cents, *, uint32_t flags):
    """
    Pack purchases as entries.

    Args:
        ids: Their ids; N.
        time_us: int64 [N].
        cents: int64 [N].
        flags: Of each entry.

    Returns:
        N entries, or None.
    """
    cdef const int64_t[:] times, amounts
    cdef Py_ssize_t rows, row, size
    cdef int64_t time
    cdef uint32_t amount
    cdef bytearray whole
    cdef char *entry
    cdef bytes one, digest
    try:
        times, amounts = time_us, cents
    except (TypeError, ValueError):
        return None
    rows = len(times)
    if rows == 0 or len(amounts) != rows:
        return None
    if type(ids) is not list or not _are_ids(ids, rows):
        return None
    whole = bytearray(rows * ENTRY_BYTES)
    entry = whole
    for row in range(rows):
        one = (<list>ids)[row]
        size = PyBytes_GET_SIZE(one)
        if size > 255:
            return None
        time, amount = times[row], <uint32_t>amounts[row]
        memcpy(entry, &time, 8)
        entry[ORDER_AT] = <char>size
        memcpy(entry + ORDER_AT + 1, PyBytes_AS_STRING(one), min(size, PREFIX))
        digest = _hash(one)
        memcpy(entry + HASH_AT, PyBytes_AS_STRING(digest), 8)
        memcpy(entry + CENTS_AT, &amount, 4)
        memcpy(entry + FLAGS_AT, &flags, 4)
        entry += ENTRY_BYTES
    return whole


def group(
    list prefixes,
    columns,
    list entries,
    bytes settings,
    int64_t[:, :, ::1] places,
):
    """
    Group events by the key of each entity, in the order of its first event.

    Args:
        prefixes: Of the keys, per entity.
        columns: Per entity, the id that each event belongs to; N each.
        entries: Per entity, the packed events; equal sizes.
        settings: ARGUMENTS of each entity.
        places: [2, entities, N], written: the key of each event, counted from the
            entity's first; and the event at each position of its group.

    Returns:
        Keys, first key of each entity with the end of the last, arguments and events;
        or None.
    """
    cdef Py_ssize_t entities = len(prefixes), rows = places.shape[2], total = 0
    cdef Py_ssize_t at, row, size, key, count, position
    cdef uint32_t number
    cdef list column, keys = [], first_key = [0]
    cdef dict found
    cdef bytes prefix, one, raw, name, events
    cdef bytearray arguments = bytearray(), counts
    cdef char *target
    cdef char *argument
    cdef int64_t *next_
    if type(columns) is not list:
        columns = list(columns)
    if places.shape[0] != 2 or places.shape[1] != entities or rows == 0:
        return None
    if len(columns) != entities or len(entries) != entities:
        return None
    if len(settings) != ARGUMENT_BYTES * entities or not _are_ids(prefixes, entities):
        return None
    if not _are_columns(columns, rows) or not _are_ids(entries, entities):
        return None
    for raw in entries:
        if len(raw) == 0 or len(raw) % rows:
            return None
        total += len(raw)
    events = PyBytes_FromStringAndSize(NULL, total)
    target = PyBytes_AS_STRING(events)
    for at in range(entities):
        prefix, column, raw = prefixes[at], columns[at], entries[at]
        found = {}
        for row in range(rows):
            one = column[row]
            count = len(found)
            key = found.setdefault(one, count)
            if key == count:
                size = PyBytes_GET_SIZE(prefix)
                name = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(one))
                memcpy(PyBytes_AS_STRING(name), PyBytes_AS_STRING(prefix), size)
                memcpy(
                    PyBytes_AS_STRING(name) + size,
                    PyBytes_AS_STRING(one),
                    PyBytes_GET_SIZE(one),
                )
                keys.append(name)
            places[0, at, row] = key
        count = len(found)
        first_key.append(len(keys))
        size = PyBytes_GET_SIZE(raw) // rows
        # Number of events of each key, then the position after them.
        counts = bytearray(8 * count)
        next_ = <int64_t *><char *>counts
        for row in range(rows):
            next_[places[0, at, row]] += 1
        position = len(arguments)
        arguments.extend(settings[ARGUMENT_BYTES * at : ARGUMENT_BYTES * (at + 1)] * count)
        argument = arguments
        argument += position
        position = 0
        for key in range(count):
            number = <uint32_t>next_[key]
            memcpy(argument + EVENTS_AT, &number, 4)
            argument += ARGUMENT_BYTES
            next_[key] = position
            position += number
        for row in range(rows):
            key = places[0, at, row]
            position = next_[key]
            next_[key] += 1
            places[1, at, position] = row
            memcpy(target + position * size, PyBytes_AS_STRING(raw) + row * size, size)
        target += rows * size
    return keys, first_key, bytes(arguments), events


cdef char *_put_number(char *target, char kind, long long number) noexcept:
    """Write a byte, a number that is not negative, and the end of a line."""
    cdef char digits[20]
    cdef Py_ssize_t at = 20
    while True:
        at -= 1
        digits[at] = <char>(48 + number % 10)
        number //= 10
        if number == 0:
            break
    target[0] = kind
    memcpy(target + 1, digits + at, 20 - at)
    target += 21 - at
    memcpy(target, b"\r\n", 2)
    return target + 2


cdef Py_ssize_t _digits(long long number) noexcept:
    """Return the number of digits of a number that is not negative."""
    cdef Py_ssize_t count = 1
    while number >= 10:
        number //= 10
        count += 1
    return count


def pack_commands(commands):
    """
    Pack commands for Redis, as hiredis does.

    Args:
        commands: Tuples of bytes and of whole numbers that are not negative.

    Returns:
        Their bytes, one after the other; or None.

    Source: the Redis serialization protocol, "Sending commands to a Redis server".
    """
    cdef Py_ssize_t total = 0, size
    cdef long long number
    cdef int overflow
    cdef char *target
    cdef char *start
    cdef bytes whole
    if type(commands) is not list:
        commands = list(commands)
    for command in <list>commands:
        if type(command) is not tuple:
            return None
        total += LINE_BYTES
        for one in <tuple>command:
            total += 2 * LINE_BYTES
            if PyBytes_CheckExact(one):
                total += PyBytes_GET_SIZE(one)
            elif PyLong_CheckExact(one):
                number = PyLong_AsLongLongAndOverflow(one, &overflow)
                if overflow or number < 0:
                    return None
            else:
                return None
    whole = PyBytes_FromStringAndSize(NULL, total)
    start = target = PyBytes_AS_STRING(whole)
    for command in <list>commands:
        target = _put_number(target, b"*", len(<tuple>command))
        for one in <tuple>command:
            if PyBytes_CheckExact(one):
                size = PyBytes_GET_SIZE(one)
                target = _put_number(target, b"$", size)
                memcpy(target, PyBytes_AS_STRING(one), size)
                target += size
                memcpy(target, b"\r\n", 2)
                target += 2
            else:
                number = PyLong_AsLongLongAndOverflow(one, &overflow)
                target = _put_number(target, b"$", _digits(number))
                # Numbers travel as texts: the line feed before it is written again.
                target = _put_number(target - 1, b"\n", number)
    return PyBytes_FromStringAndSize(start, target - start)

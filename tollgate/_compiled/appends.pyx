# cython: language_level=3, wraparound=False, cdivision=True
"""
Plan the purchases that only follow at the end of known values.

tollgate/store/apply.lua is the definition (`append`, `append_head`): it changes a value
in the same way when it has to read it. Here is no other, because the caller does without
this loop where it is not built.
"""

from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from libc.stdint cimport int64_t, uint16_t, uint32_t
from libc.string cimport memcmp, memcpy

# Layouts: HEADER, ENTRY and PREFIX_BYTES of tollgate/features, ARGUMENTS of
# store_events.py.
cdef enum:
    HEADER_BYTES = 32
    ENTRY_BYTES = 48
    HASH_AT = 24
    HASH_BYTES = 8
    FLAGS_AT = 36
    PURCHASE = 1
    PREFIX_BYTES = 160
    VALUE_VERSION = 1
    TILED_VERSION = 2
    SIZES_BYTES = 8

cdef bytes UNKNOWN = bytes(SIZES_BYTES)


cdef packed struct Settings:
    int64_t horizon_us
    uint16_t cap
    uint16_t most_bytes
    uint32_t ttl_s
    uint32_t events
    uint16_t entry_bytes
    uint16_t form


cdef packed struct Header:
    uint32_t layout
    uint32_t checksum
    uint32_t overflow
    uint32_t count
    int64_t watermark_us
    int64_t dropped_us


cdef int64_t _time(const char* packed) noexcept:
    """Read a time."""
    cdef int64_t time_us
    memcpy(&time_us, packed, sizeof(time_us))
    return time_us


cdef uint32_t _words(const char* packed, Py_ssize_t size) noexcept:
    """Return the sum of 32-bit words, modulo 2^32."""
    cdef uint32_t total = 0, word
    cdef Py_ssize_t at
    for at in range(0, size, 4):
        memcpy(&word, packed + at, sizeof(word))
        total += word
    return total


cdef int64_t _trim_time(int64_t watermark_us, int64_t horizon_us) noexcept:
    """Return the time before which entries leave, as `trim_time` of apply.lua."""
    cdef int64_t lot = 1
    while lot <= horizon_us // 16:
        lot *= 2
    # A power of two: the mask rounds down, times before 1970 too.
    return (watermark_us - horizon_us) & -lot


cdef Py_ssize_t _append(
    const char* value,
    Py_ssize_t size,
    const char* event,
    const Settings* settings,
    Header* head,
) noexcept:
    """
    Append a purchase to a value: compute the new header.

    Returns the size of the old header with the entries that leave; 0 in any other than
    the usual case.
    """
    cdef int64_t width = settings.entry_bytes
    cdef int64_t time_us = _time(event), oldest_us, body, entries, at
    cdef uint32_t flags
    cdef Py_ssize_t compared = HEADER_BYTES
    memcpy(head, value, HEADER_BYTES)
    body = size - head.count * width
    if head.layout != (
        width << 8 | (TILED_VERSION if settings.form else VALUE_VERSION)
    ):
        return 0
    if not head.count or head.watermark_us < 0 or head.dropped_us < 0:
        return 0
    if body < PREFIX_BYTES if settings.form else body != HEADER_BYTES:
        return 0
    memcpy(&flags, event + FLAGS_AT, sizeof(flags))
    if flags != PURCHASE or time_us <= head.watermark_us or time_us <= head.dropped_us:
        return 0
    if time_us <= _time(value + size - width):
        return 0
    at = body + HASH_AT
    while at < size:
        if memcmp(value + at, event + HASH_AT, HASH_BYTES) == 0:
            return 0
        at += width
    if not settings.form:
        oldest_us = _trim_time(time_us, settings.horizon_us)
        while compared < size and _time(value + compared) < oldest_us:
            compared += width
    entries = <int64_t>head.count + 1 - (compared - HEADER_BYTES) // width
    if entries > settings.cap and size + width > settings.most_bytes:
        return 0
    head.checksum += _words(event, width)
    head.checksum -= _words(value + HEADER_BYTES, compared - HEADER_BYTES)
    head.checksum += <uint32_t>entries - head.count
    head.checksum += _words(<const char*>&time_us, sizeof(time_us))
    head.checksum -= _words(<const char*>&head.watermark_us, sizeof(head.watermark_us))
    head.count = entries
    head.watermark_us = time_us
    return compared


def plan_appends(bytes arguments, bytes events, list values):
    """
    Plan the events of a call that only follow at the end of their values.

    Args:
        arguments: Of the call, as its events.
        events: One or more for each key.
        values: Per key its value, or empty bytes; valid ones.

    Returns:
        Per key its bytes of ARGV[5] of apply.lua; and per planned event the place of
        its key, and its next value. None without any, and for arguments that do not
        describe the events.
    """
    cdef Py_ssize_t count = len(values), place, start = 0, size, compared
    cdef Py_ssize_t total = PyBytes_GET_SIZE(events)
    cdef const char* packed = PyBytes_AS_STRING(arguments)
    cdef const char* entries = PyBytes_AS_STRING(events)
    cdef const char* old
    cdef char* record
    cdef uint32_t sizes[2]
    cdef Settings settings
    cdef Header head
    cdef list known = [], appends = []
    cdef object value
    cdef bytes one
    if PyBytes_GET_SIZE(arguments) != count * <Py_ssize_t>sizeof(Settings):
        return None
    for place in range(count):
        value = values[place]
        if not PyBytes_CheckExact(value):
            return None
        memcpy(&settings, packed + place * sizeof(Settings), sizeof(Settings))
        size = PyBytes_GET_SIZE(value)
        old = PyBytes_AS_STRING(value)
        if settings.entry_bytes < ENTRY_BYTES or settings.entry_bytes % 4 != 0:
            return None
        if start + <int64_t>settings.entry_bytes * settings.events > total:
            return None
        compared = 0
        if settings.events == 1 and size >= HEADER_BYTES + settings.entry_bytes:
            compared = _append(old, size, entries + start, &settings, &head)
        if compared == 0:
            known.append(UNKNOWN)
        else:
            one = PyBytes_FromStringAndSize(
                NULL, SIZES_BYTES + HEADER_BYTES + compared
            )
            record = PyBytes_AS_STRING(one)
            sizes[0] = compared
            sizes[1] = size
            memcpy(record, sizes, SIZES_BYTES)
            memcpy(record + SIZES_BYTES, &head, HEADER_BYTES)
            memcpy(record + SIZES_BYTES + HEADER_BYTES, old, compared)
            known.append(one)
            one = PyBytes_FromStringAndSize(
                NULL, HEADER_BYTES + size - compared + settings.entry_bytes
            )
            record = PyBytes_AS_STRING(one)
            memcpy(record, &head, HEADER_BYTES)
            memcpy(record + HEADER_BYTES, old + compared, size - compared)
            memcpy(
                record + HEADER_BYTES + size - compared,
                entries + start,
                settings.entry_bytes,
            )
            appends.append((place, one))
        start += <Py_ssize_t>settings.entry_bytes * settings.events
    return (known, appends) if appends else None

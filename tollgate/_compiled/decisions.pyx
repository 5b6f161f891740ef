# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""
Apply a policy to a batch; policy/decide.py defines the results.

It gives the same bits, or returns None for input that it does not cover.
"""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDED_RO, PyBUF_WRITABLE,
    PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.math cimport NAN, fabs, rint
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from tollgate.schema import MISSING as _MISSING_FIELD, Degraded

cdef int64_t MISSING = _MISSING_FIELD
cdef uint32_t MODEL_OUTPUT = int(Degraded.MODEL_OUTPUT)


# Open the memory of arrays, and check its type and shape.

cdef class _Buffers:
    """Hold buffers, and release them at the end."""

    cdef Py_buffer* views
    cdef Py_ssize_t room, used

    def __cinit__(self, Py_ssize_t room):
        self.views = <Py_buffer*>PyMem_Malloc(room * sizeof(Py_buffer))
        if self.views == NULL:
            raise MemoryError
        self.room = room
        self.used = 0

    def __dealloc__(self):
        for at in range(self.used):
            PyBuffer_Release(&self.views[at])
        PyMem_Free(self.views)

    cdef Py_buffer* open(
        self, object array, bint contiguous, bint writable, int ndim, Py_ssize_t rows,
        Py_ssize_t size, char one, char other,
    ) except? NULL:
        """
        Open an array.

        Args:
            contiguous: True if rows must follow each other without gaps.
            size: Bytes of an item.
            one, other: The format characters that it may have.

        Returns:
            NULL, without an error, if the array does not have that form.
        """
        cdef int flags = PyBUF_FORMAT
        cdef const char* kind
        cdef Py_buffer* view = &self.views[self.used]
        if self.used >= self.room:
            raise MemoryError
        flags |= PyBUF_ND if contiguous else PyBUF_STRIDED_RO
        if writable:
            flags |= PyBUF_WRITABLE
        try:
            PyObject_GetBuffer(array, view, flags)
        except (BufferError, TypeError, ValueError):
            return NULL
        self.used += 1
        kind = view.format
        if kind == NULL or view.ndim != ndim or view.itemsize != size:
            return NULL
        if kind[0] == b"<" or kind[0] == b"=" or kind[0] == b"@":
            kind += 1
        if (kind[0] != one and kind[0] != other) or kind[1] != 0:
            return NULL
        return NULL if view.shape[0] != rows else view


cdef inline int64_t _i64(const char* at) noexcept nogil:
    cdef int64_t value
    memcpy(&value, at, 8)  # columns of a packed record are not aligned
    return value


cdef inline uint32_t _u32(const char* at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline float _f32(const char* at) noexcept nogil:
    cdef float value
    memcpy(&value, at, 4)
    return value


cdef struct Column:
    const char* data  # NULL for a field that no request had
    Py_ssize_t stride


# Apply a policy.

# Kinds of the numbers that conditions compare; policy/decide.py has the same.
cdef enum:
    FEATURE = 0
    AMOUNT = 1
    SCORE = 2
    LABEL = 3
    FIELD = 4  # a whole number, divided by its scale
    EXACT = 5  # the position of a float64; schema.floats_at


cdef double _float_at(int64_t place) noexcept nogil:
    cdef int64_t size = -place if place < 0 else place
    cdef double value
    memcpy(&value, &size, 8)
    return -value if place < 0 else value


cdef struct Row:
    Py_ssize_t at, feature_stride, label_stride
    const char* features
    const char* chances
    int64_t cents, time_us
    uint32_t degraded
    uint64_t bits  # degraded, and above them those of lists
    bint usable, scored
    double score
    Column* words
    double* values
    uint8_t decision, segment
    int64_t codes
    uint64_t held


cdef inline int64_t _word(Row* row, Py_ssize_t field) noexcept nogil:
    cdef Column column = row.words[field]
    return MISSING if column.data == NULL else _i64(column.data + row.at * column.stride)


cdef class DecisionProgram:
    """Hold the tables of one policy; policy/decide.py makes it."""

    cdef:
        # Of each number that a condition compares: what it is.
        const int64_t[::1] kinds, columns
        const double[::1] scales
        # Of each segment and rule: its first interval, unequal value and word list.
        const int64_t[::1] interval_starts, unequal_starts, word_starts
        const int64_t[::1] interval_numbers, unequal_numbers
        const double[::1] lows, highs, unequal
        # Of each list of words: its field, whether none of them may come, its first.
        const int64_t[::1] word_fields, word_inverted, hash_starts, hashes
        const uint64_t[::1] masks, wants
        const int64_t[::1] since, until
        const uint8_t[:, ::1] allowed
        # Of each segment and none.
        const double[::1] review, decline
        const uint8_t[::1] fallback
        # Of each rule, and of each meaning of a bit.
        const int64_t[:, ::1] rules, meanings
        const int64_t[::1] weight_columns
        const double[::1] weights
        bint plain, has_sum
        double sum_within, rounding
        Py_ssize_t segments, most_column, most_label
        int64_t unavailable, declined, reviewed
        uint32_t unscored
        tuple field_names
        dict texts
        object text
        Py_ssize_t most_texts

    def __init__(
        self, *, kinds, columns, scales, interval_starts, interval_numbers, lows, highs,
        unequal_starts, unequal_numbers, unequal, word_starts, word_fields,
        word_inverted, hash_starts, hashes, masks, wants, since, until, allowed, review,
        decline, fallback, rules, meanings, unscored, weight_columns, weights, plain,
        sum_within, rounding, codes, field_names, text, most_texts,
    ):
        self.kinds, self.columns, self.scales = kinds, columns, scales
        self.interval_starts, self.interval_numbers = interval_starts, interval_numbers
        self.lows, self.highs = lows, highs
        self.unequal_starts, self.unequal_numbers = unequal_starts, unequal_numbers
        self.unequal = unequal
        self.word_starts, self.word_fields = word_starts, word_fields
        self.word_inverted, self.hash_starts = word_inverted, hash_starts
        self.hashes = hashes
        self.masks, self.wants = masks, wants
        self.since, self.until, self.allowed = since, until, allowed
        self.review, self.decline, self.fallback = review, decline, fallback
        self.rules, self.meanings, self.unscored = rules, meanings, unscored
        self.weight_columns, self.weights, self.plain = weight_columns, weights, plain
        self.has_sum = sum_within is not None
        self.sum_within = sum_within if self.has_sum else 0.0
        self.rounding = rounding
        self.unavailable, self.declined, self.reviewed = codes
        self.field_names = tuple(field_names)
        self.text, self.most_texts, self.texts = text, most_texts, {}
        self.segments = len(review) - 1
        self.most_column = self.most_label = -1
        for kind, column in zip(kinds, columns):
            if kind == FEATURE:
                self.most_column = max(self.most_column, column)
            elif kind == LABEL:
                self.most_label = max(self.most_label, column)
        self.most_label = max(self.most_label, *weight_columns)
        fields = [column for kind, column in zip(kinds, columns) if kind >= FIELD]
        for indexes, end in (
            ((*fields, *word_fields), len(self.field_names)),
            (interval_numbers, len(kinds)),
            (unequal_numbers, len(kinds)),
        ):
            if not all(0 <= one < end for one in indexes):
                raise ValueError("an index of the policy's tables is out of range")
        if min(*columns, *weight_columns, 0) < 0:
            raise ValueError("a column of the policy's tables is negative")

    def decide(self, facts, decided):
        """
        Decide rows.

        Args:
            facts: RowFacts of N rows.
            decided: PolicyDecisions of N rows, to be filled except for the codes.

        Returns:
            The codes of each row, joined; None if the rows do not have the usual types.
        """
        cdef Py_ssize_t rows = len(facts.cents)
        cdef Py_ssize_t fields = len(self.field_names)
        cdef _Buffers buffers = _Buffers(11 + fields)
        cdef Py_buffer* probabilities = buffers.open(
            facts.probabilities, False, False, 2, rows, 4, b"f", b"f"
        )
        cdef Py_buffer* features = buffers.open(
            facts.features, False, False, 2, rows, 4, b"f", b"f"
        )
        cdef Py_buffer* cents = buffers.open(
            facts.cents, False, False, 1, rows, 8, b"l", b"q"
        )
        cdef Py_buffer* bits = buffers.open(
            facts.degraded, False, False, 1, rows, 4, b"I", b"L"
        )
        cdef Py_buffer* times = buffers.open(
            facts.event_time_us, False, False, 1, rows, 8, b"l", b"q"
        )
        cdef Py_buffer* hits = buffers.open(
            facts.list_hits, False, False, 1, rows, 4, b"I", b"L"
        )
        cdef Py_buffer* out_decision = buffers.open(
            decided.decision, True, True, 1, rows, 1, b"B", b"B"
        )
        cdef Py_buffer* out_score = buffers.open(
            decided.score, True, True, 1, rows, 4, b"f", b"f"
        )
        cdef Py_buffer* out_degraded = buffers.open(
            decided.degraded, True, True, 1, rows, 4, b"I", b"L"
        )
        cdef Py_buffer* out_rules = buffers.open(
            decided.rules, True, True, 1, rows, 8, b"L", b"Q"
        )
        cdef Py_buffer* out_segment = buffers.open(
            decided.segment, True, True, 1, rows, 1, b"B", b"B"
        )
        if (
            probabilities == NULL or features == NULL or cents == NULL or bits == NULL
            or times == NULL or hits == NULL or out_decision == NULL
            or out_score == NULL or out_degraded == NULL or out_rules == NULL
            or out_segment == NULL or rows == 0
            or probabilities.shape[1] <= self.most_label
            or features.shape[1] <= self.most_column
        ):
            return None
        cdef Py_buffer* view
        cdef Py_ssize_t at
        # One more of each: a policy may name no field and no number.
        cdef size_t size = (fields + 1) * sizeof(Column)
        cdef char* memory = <char*>PyMem_Malloc(
            size + (self.kinds.shape[0] + 1) * sizeof(double)
        )
        if memory == NULL:
            raise MemoryError
        cdef Column* words = <Column*>memory
        cdef double* values = <double*>(memory + size)
        cdef Row row
        cdef Py_ssize_t label, labels = probabilities.shape[1]
        cdef float chance
        cdef uint32_t given
        cdef double exact, total
        cdef bint usable
        cdef list codes = []
        try:
            for at, name in enumerate(self.field_names):
                column = facts.fields.get(name)
                words[at].data, words[at].stride = NULL, 0
                if column is not None:
                    view = buffers.open(column, False, False, 1, rows, 8, b"l", b"q")
                    if view == NULL:
                        return None
                    words[at].data = <const char*>view.buf
                    words[at].stride = view.strides[0]
            row.words, row.values = words, values
            row.feature_stride = features.strides[1]
            row.label_stride = probabilities.strides[1]
            for at in range(rows):
                row.at = at
                row.features = <const char*>features.buf + at * features.strides[0]
                row.chances = (
                    <const char*>probabilities.buf + at * probabilities.strides[0]
                )
                row.cents = _i64(<const char*>cents.buf + at * cents.strides[0])
                row.time_us = _i64(<const char*>times.buf + at * times.strides[0])
                given = _u32(<const char*>bits.buf + at * bits.strides[0])
                usable = (given & MODEL_OUTPUT) == 0
                total = 0.0
                for label in range(labels):
                    chance = _f32(row.chances + label * row.label_stride)
                    usable = usable and chance >= 0 and chance <= 1
                    total += <double>chance
                if self.has_sum:
                    usable = usable and fabs(total - 1.0) <= self.sum_within
                exact = self._score(&row) if usable else NAN
                if not usable:
                    given |= MODEL_OUTPUT
                (<float*>out_score.buf)[at] = <float>exact
                (<uint32_t*>out_degraded.buf)[at] = given
                row.usable = usable
                row.scored = usable and (given & self.unscored) == 0
                row.score = exact if row.scored else NAN
                row.degraded = given
                row.bits = (
                    <uint64_t>_u32(<const char*>hits.buf + at * hits.strides[0]) << 32
                ) | given
                self._decide(&row)
                (<uint8_t*>out_decision.buf)[at] = row.decision
                (<uint64_t*>out_rules.buf)[at] = row.held
                (<uint8_t*>out_segment.buf)[at] = row.segment
                codes.append(self._text(row.codes))
            return codes
        finally:
            PyMem_Free(memory)

    def __reduce__(self):
        # A copy of a policy makes its own.
        return type(None), ()

    cdef object _text(self, int64_t codes):
        text = self.texts.get(codes)
        if text is None:
            text = self.text(codes)
            if len(self.texts) < self.most_texts:
                self.texts[codes] = text
        return text

    cdef double _score(self, Row* row) except? -1.0:
        cdef double found = 0.0
        cdef Py_ssize_t at
        if self.plain:
            at = self.weight_columns[0]
            found = _f32(row.chances + at * row.label_stride)
        else:
            for at in range(self.weights.shape[0]):
                found += <double>_f32(
                    row.chances + self.weight_columns[at] * row.label_stride
                ) * self.weights[at]
            if found > 1.0:
                found = 1.0
        if self.rounding > 0:  # as np.round
            found = rint(found * self.rounding) / self.rounding
        return found

    cdef int _decide(self, Row* row) except -1:
        """Fill decision, codes, rules and segment of a row."""
        cdef Py_ssize_t at, place, segment
        cdef int level, moved
        cdef bint declined, reviewed
        cdef uint8_t sum_of_segments = 0
        self._read_values(row)
        for at in range(self.segments):
            if self._holds(row, at):
                sum_of_segments += <uint8_t>(at + 1)
        segment = sum_of_segments
        declined = row.score >= self.decline[segment]
        reviewed = row.score >= self.review[segment]
        level = declined + reviewed
        row.codes = 0
        if declined:
            row.codes |= <int64_t>1 << self.declined
        elif reviewed:
            row.codes |= <int64_t>1 << self.reviewed
        if not row.usable:
            level = self.fallback[segment]
            row.codes |= <int64_t>1 << self.unavailable
        for at in range(self.meanings.shape[0]):
            if row.degraded & <uint32_t>self.meanings[at, 0]:
                level = max(level, <int>self.meanings[at, 3])
        row.held = 0
        for at in range(self.rules.shape[0]):
            place = self.segments + at
            if not self.allowed[segment, at] or not self._holds(row, place):
                continue
            if self.since.shape[0] and (
                row.time_us < self.since[at] or row.time_us >= self.until[at]
            ):
                continue
            row.held |= <uint64_t>1 << at
            if self.rules[at, 0] > 0:
                level = max(level, <int>self.rules[at, 0])
                row.codes |= <int64_t>1 << self.rules[at, 2]
            elif level > self.rules[at, 1]:
                # An upper limit is a reason only where it changed the decision.
                level = <int>self.rules[at, 1]
                row.codes |= <int64_t>1 << self.rules[at, 2]
            if self.rules[at, 3]:
                break
        for at in range(self.meanings.shape[0]):
            if row.degraded & <uint32_t>self.meanings[at, 0]:
                level = max(level, <int>self.meanings[at, 1])
                row.codes |= <int64_t>1 << self.meanings[at, 2]
        row.decision = <uint8_t>level
        row.segment = sum_of_segments
        return 0

    cdef int _read_values(self, Row* row) except -1:
        cdef Py_ssize_t at
        cdef int64_t kind, column, whole
        cdef double value
        for at in range(self.kinds.shape[0]):
            kind, column = self.kinds[at], self.columns[at]
            if kind == FEATURE:
                value = _f32(row.features + column * row.feature_stride)
            elif kind == AMOUNT:
                value = <double>row.cents / self.scales[at]
            elif kind == SCORE:
                value = row.score
            elif kind == LABEL:
                value = NAN
                if row.scored:
                    value = _f32(row.chances + column * row.label_stride)
            else:
                whole = _word(row, column)
                if whole == MISSING:
                    value = NAN
                elif kind == EXACT:
                    value = _float_at(whole)
                else:
                    value = <double>whole / self.scales[at]
            row.values[at] = value
        return 0

    cdef bint _holds(self, Row* row, Py_ssize_t place) except -1:
        """Evaluate the conditions of a segment or a rule."""
        cdef Py_ssize_t at, word
        cdef double value
        cdef int64_t whole
        cdef bint found
        if (row.bits & self.masks[place]) != self.wants[place]:
            return False
        for at in range(self.interval_starts[place], self.interval_starts[place + 1]):
            value = row.values[self.interval_numbers[at]]
            if not (value >= self.lows[at] and value <= self.highs[at]):
                return False
        for at in range(self.unequal_starts[place], self.unequal_starts[place + 1]):
            if row.values[self.unequal_numbers[at]] == self.unequal[at]:
                return False
        for at in range(self.word_starts[place], self.word_starts[place + 1]):
            whole = _word(row, self.word_fields[at])
            found = False
            for word in range(self.hash_starts[at], self.hash_starts[at + 1]):
                found = found or self.hashes[word] == whole
            if self.word_inverted[at]:
                found = not found and whole != MISSING
            if not found:
                return False
        return True

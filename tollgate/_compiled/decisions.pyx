# cython: language_level=3, boundscheck=True, wraparound=False, cdivision=True
"""
Apply a policy to a batch, and pack the journal's chunks; the definitions are in Python.

`DecisionProgram` is policy/decide.py, `are_unmarked` is step_journal.py, `ChunkPacker`
is journal_rows.py with decision_record.py, `store_commands` is
stored_decision_commands.py. Each gives the same bits, or returns None for input that it
does not cover.
"""

from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_STRIDED_RO, PyBUF_WRITABLE,
    PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.math cimport NAN, fabs, rint
from libc.stdint cimport INT64_MIN, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef int64_t MISSING = INT64_MIN  # schema.MISSING


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


cdef inline uint16_t _u16(const char* at) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, at, 2)
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


cdef class _Rows:
    """Hold the columns of RowFacts, and read one row after the other."""

    cdef:
        Py_ssize_t rows, labels
        _Buffers buffers
        Py_buffer* probabilities
        Py_buffer* features
        Py_buffer* cents
        Py_buffer* degraded
        Py_buffer* times
        Py_buffer* hits
        char* memory
        Row row

    def __cinit__(self, Py_ssize_t rows):
        self.rows = rows
        self.memory = NULL

    def __dealloc__(self):
        PyMem_Free(self.memory)

    cdef bint open(self, object facts, DecisionProgram program) except -1:
        """Open the columns; return whether they have the usual types."""
        cdef Py_ssize_t rows = self.rows
        cdef Py_ssize_t fields = len(program.field_names)
        cdef _Buffers buffers = _Buffers(6 + fields)
        cdef Py_buffer* view
        cdef Py_ssize_t at
        self.buffers = buffers
        self.probabilities = buffers.open(
            facts.probabilities, False, False, 2, rows, 4, b"f", b"f"
        )
        self.features = buffers.open(
            facts.features, False, False, 2, rows, 4, b"f", b"f"
        )
        self.cents = buffers.open(facts.cents, False, False, 1, rows, 8, b"l", b"q")
        self.degraded = buffers.open(
            facts.degraded, False, False, 1, rows, 4, b"I", b"L"
        )
        self.times = buffers.open(
            facts.event_time_us, False, False, 1, rows, 8, b"l", b"q"
        )
        self.hits = buffers.open(
            facts.list_hits, False, False, 1, rows, 4, b"I", b"L"
        )
        if (
            self.probabilities == NULL or self.features == NULL or self.cents == NULL
            or self.degraded == NULL or self.times == NULL or self.hits == NULL
            or rows == 0 or self.probabilities.shape[1] <= program.most_label
            or self.features.shape[1] <= program.most_column
        ):
            return False
        # One more of each: a policy may name no field and no number.
        cdef size_t size = (fields + 1) * sizeof(Column)
        self.memory = <char*>PyMem_Malloc(
            size + (program.kinds.shape[0] + 1) * sizeof(double)
        )
        if self.memory == NULL:
            raise MemoryError
        cdef Column* words = <Column*>self.memory
        for at, name in enumerate(program.field_names):
            column = facts.fields.get(name)
            words[at].data, words[at].stride = NULL, 0
            if column is not None:
                view = buffers.open(column, False, False, 1, rows, 8, b"l", b"q")
                if view == NULL:
                    return False
                words[at].data = <const char*>view.buf
                words[at].stride = view.strides[0]
        self.row.words, self.row.values = words, <double*>(self.memory + size)
        self.row.feature_stride = self.features.strides[1]
        self.row.label_stride = self.probabilities.strides[1]
        self.labels = self.probabilities.shape[1]
        return True

    cdef int read(self, Py_ssize_t at) except -1:
        """Point to a row; its `bits` are those of lists only."""
        cdef Row* row = &self.row
        row.at = at
        row.features = <const char*>self.features.buf + at * self.features.strides[0]
        row.chances = (
            <const char*>self.probabilities.buf + at * self.probabilities.strides[0]
        )
        row.cents = _i64(<const char*>self.cents.buf + at * self.cents.strides[0])
        row.time_us = _i64(<const char*>self.times.buf + at * self.times.strides[0])
        row.degraded = _u32(
            <const char*>self.degraded.buf + at * self.degraded.strides[0]
        )
        row.bits = <uint64_t>_u32(
            <const char*>self.hits.buf + at * self.hits.strides[0]
        ) << 32
        return 0


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
        double sum_within, rounding, least, most, sign
        Py_ssize_t segments, before_model, most_column, most_label
        int64_t unavailable, declined, reviewed
        uint32_t model_output, unscored
        tuple field_names
        dict texts
        object text
        Py_ssize_t most_texts

    def __init__(
        self, *, kinds, columns, scales, interval_starts, interval_numbers, lows, highs,
        unequal_starts, unequal_numbers, unequal, word_starts, word_fields,
        word_inverted, hash_starts, hashes, masks, wants, since, until, allowed, review,
        decline, fallback, rules, before_model, meanings, model_output, unscored,
        weight_columns, weights, plain, sum_within, limits, sign, rounding, codes, field_names, text,
        most_texts,
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
        self.rules, self.before_model = rules, before_model
        self.meanings = meanings
        self.model_output, self.unscored = model_output, unscored
        self.weight_columns, self.weights, self.plain = weight_columns, weights, plain
        self.has_sum = sum_within is not None
        self.sum_within = sum_within if self.has_sum else 0.0
        self.rounding = rounding
        self.least, self.most = limits
        self.sign = sign
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
        if not 0 <= before_model <= len(rules):
            raise ValueError("the policy has fewer rules than decide before the model")
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
        cdef _Buffers buffers = _Buffers(5)
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
        cdef _Rows opened = _Rows(rows)
        if (
            out_decision == NULL or out_score == NULL or out_degraded == NULL
            or out_rules == NULL or out_segment == NULL
            or not opened.open(facts, self)
        ):
            return None
        cdef Row* row = &opened.row
        cdef Py_ssize_t at, label
        cdef float chance
        cdef double exact, total
        cdef bint usable
        cdef list codes = []
        for at in range(rows):
            opened.read(at)
            if self.before_model and self._settle(row):
                exact = NAN
            else:
                usable = (row.degraded & self.model_output) == 0
                total = 0.0
                for label in range(opened.labels):
                    chance = _f32(row.chances + label * row.label_stride)
                    usable = usable and self.least <= chance <= self.most
                    total += <double>chance
                if self.has_sum:
                    usable = usable and fabs(total - 1.0) <= self.sum_within
                exact = self._score(row) if usable else NAN
                if not usable:
                    row.degraded |= self.model_output
                row.usable = usable
                row.scored = usable and (row.degraded & self.unscored) == 0
                row.score = exact if row.scored else NAN
                row.bits |= row.degraded
                self._decide(row)
            (<float*>out_score.buf)[at] = <float>exact
            (<uint32_t*>out_degraded.buf)[at] = row.degraded
            (<uint8_t*>out_decision.buf)[at] = row.decision
            (<uint64_t*>out_rules.buf)[at] = row.held
            (<uint8_t*>out_segment.buf)[at] = row.segment
            codes.append(self._text(row.codes))
        return codes

    def needs_model(self, facts, done):
        """
        Return whether a row is neither done nor decided before the model.

        Args:
            facts: RowFacts of N rows.
            done: bool [N].

        Returns:
            True, False, or None if the rows do not have the usual types.
        """
        cdef Py_ssize_t at, rows = len(facts.cents)
        cdef _Buffers buffers = _Buffers(1)
        cdef Py_buffer* over = buffers.open(done, True, False, 1, rows, 1, b"?", b"?")
        cdef _Rows opened = _Rows(rows)
        if over == NULL or not opened.open(facts, self):
            return None
        for at in range(rows):
            if not (<uint8_t*>over.buf)[at]:
                opened.read(at)
                if not self._settle(&opened.row):
                    return True
        return False

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

    cdef bint _settle(self, Row* row) except -1:
        """
        Fill in a row if a rule decides it before the model; return whether one does.

        Args:
            row: As read; if no rule does, it is so again afterwards.
        """
        cdef Py_ssize_t at
        cdef uint32_t given = row.degraded
        cdef uint64_t hits = row.bits
        row.scored, row.score = False, NAN
        row.degraded = given & ~self.model_output
        row.bits |= row.degraded
        self._read_values(row)
        self._find_segment(row)
        for at in range(self.before_model):
            if self._applies(row, at):
                row.held = <uint64_t>1 << at
                row.codes = <int64_t>1 << self.rules[at, 2]
                self._apply_meanings(row, <int>self.rules[at, 0])
                return True
        row.degraded, row.bits = given, hits
        return False

    cdef int _find_segment(self, Row* row) except -1:
        cdef Py_ssize_t at
        row.segment = 0
        for at in range(self.segments):
            if self._holds(row, at):
                row.segment += <uint8_t>(at + 1)
        return 0

    cdef bint _applies(self, Row* row, Py_ssize_t at) except -1:
        """Return whether a rule holds for a row, in its segment and at its time."""
        if not self.allowed[row.segment, at] or not self._holds(row, self.segments + at):
            return False
        return not self.since.shape[0] or (
            row.time_us >= self.since[at] and row.time_us < self.until[at]
        )

    cdef int _apply_meanings(self, Row* row, int level) except -1:
        """Raise a level as degraded bits require; fill decision and codes."""
        cdef Py_ssize_t at
        for at in range(self.meanings.shape[0]):
            if row.degraded & <uint32_t>self.meanings[at, 0]:
                level = max(level, <int>self.meanings[at, 1])
                row.codes |= <int64_t>1 << self.meanings[at, 2]
        row.decision = <uint8_t>level
        return 0

    cdef int _decide(self, Row* row) except -1:
        """Fill decision, codes, rules and segment of a row."""
        cdef Py_ssize_t at, segment
        cdef int level
        cdef bint declined, reviewed
        self._read_values(row)
        self._find_segment(row)
        segment = row.segment
        declined = self.sign * row.score >= self.decline[segment]
        reviewed = self.sign * row.score >= self.review[segment]
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
        for at in range(self.before_model, self.rules.shape[0]):
            if not self._applies(row, at):
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
        return self._apply_meanings(row, level)

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


# Find rows that are not decided as usual.

def are_unmarked(
    context, uint64_t spec_hash, Py_ssize_t dry_run, Py_ssize_t bad,
    Py_ssize_t earlier_length, Py_ssize_t spec,
):
    """
    Return True if `step_journal.row_marks` marks no row; None for an unusual context.

    Args:
        context: Of context_dtype; [N].
        dry_run, bad, earlier_length, spec: Offsets of its columns.
    """
    cdef Py_buffer view
    cdef const char* row
    cdef uint64_t found
    cdef bint unmarked = True
    try:
        PyObject_GetBuffer(context, &view, PyBUF_ND)
    except (BufferError, TypeError, ValueError):
        return None
    try:
        if view.ndim != 1 or view.itemsize < max(
            dry_run + 1, bad + 1, earlier_length + 2, spec + 8
        ):
            return None
        row = <const char*>view.buf
        for _ in range(view.shape[0]):
            found = <uint64_t>_i64(row + spec)
            if row[dry_run] or row[bad] or _u16(row + earlier_length):
                unmarked = False
            if found != spec_hash:
                unmarked = False
            row += view.itemsize
        return unmarked
    finally:
        PyBuffer_Release(&view)


# Pack the journal's chunks.

# First columns of integers of a chunk, in the order of decision_record.py.
cdef enum:
    DECIDED_US = 0
    EVENT_TIME_US = 1
    CENTS = 2
    DEGRADED = 3
    AGE_MS = 4
    APPLIED = 5
    LIST_HITS = 6
    DECISION = 7
    RULES = 8
    FEATURES_US = 9
    MODEL_US = 10
    DECISION_US = 11
    FIXED = 12

cdef int64_t MOST_U32 = (<int64_t>1 << 32) - 1
cdef Py_ssize_t[5] WIDTHS = [0, 1, 2, 4, 8]  # bytes by width code


cdef inline int _width_code(uint64_t value) noexcept nogil:
    if value == 0:
        return 0
    if value <= 0xFF:
        return 1
    if value <= 0xFFFF:
        return 2
    return 3 if value >> 32 == 0 else 4


cdef struct Batch:
    const char* context
    Py_buffer* features
    Py_buffer* probabilities
    Py_buffer* score
    Py_buffer* degraded
    Py_buffer* decision
    Py_buffer* rules
    Py_ssize_t rows
    int64_t decided_us, began_us, decision_us


cdef class ChunkPacker:
    """
    Pack batches of one heading; journal_rows.py makes it.

    Args:
        writer: Id of the writer; 8 bytes.
        names: Names of a chunk, encoded.
        offsets: Of the columns of the context, by name.
        ids: Offsets of the length and of the bytes of each id; [ids, 2].
        fields: Offset of each declared field.
        row_bytes: Bytes of a row of the context.
        id_bytes: Most bytes of an id.
        most_rows: Most rows of a chunk.
    """

    cdef:
        bytes writer, names
        uint64_t spec_hash
        Py_ssize_t row_bytes, event_time_us, cents, age_ms, applied, list_hits
        Py_ssize_t arrival_us, features_us, fingerprint, most_rows, id_bytes
        const int64_t[:, ::1] ids
        const int64_t[::1] fields

    def __init__(
        self, *, writer, names, spec_hash, offsets, ids, fields, row_bytes, id_bytes,
        most_rows,
    ):
        self.writer, self.names, self.spec_hash = writer, names, spec_hash
        self.row_bytes, self.most_rows, self.id_bytes = row_bytes, most_rows, id_bytes
        self.event_time_us, self.cents = offsets["event_time_us"], offsets["cents"]
        self.age_ms, self.applied = offsets["age_ms"], offsets["applied"]
        self.list_hits, self.arrival_us = offsets["list_hits"], offsets["arrival_us"]
        self.features_us = offsets["features_us"]
        self.fingerprint = offsets["fingerprint"]
        self.ids, self.fields = ids, fields
        ends = [
            *(offsets[name] + 8 for name in ("event_time_us", "cents", "arrival_us")),
            *(offsets[name] + 4 for name in ("age_ms", "list_hits", "features_us")),
            offsets["fingerprint"] + 8, offsets["applied"] + 1,
            *(at + 8 for at in fields), *(at + 2 for at, _ in ids),
            *(at + id_bytes for _, at in ids),
        ]
        if max(ends) > row_bytes or len(writer) != 8 or len(names) > 0xFFFF:
            raise ValueError("the columns of a context do not fit its rows")

    def pack(self, list batches, uint64_t first):
        """
        Pack batches of Rows.

        Args:
            first: Sequence number of the first row.

        Returns:
            The body of the chunk, the ids of the transactions, and the fingerprints as
            bytes; None if a batch does not have the usual types.
        """
        cdef Py_ssize_t count = len(batches), rows = 0, at
        cdef _Buffers buffers = _Buffers(6 * count + 1)
        cdef Batch* opened = <Batch*>PyMem_Malloc((count + 1) * sizeof(Batch))
        cdef list codes = [], contexts = []
        cdef bytes context
        if opened == NULL:
            raise MemoryError
        try:
            for at in range(count):
                one = batches[at]
                context = one.context
                coded = one.reason_codes.tolist()
                opened[at].rows = len(coded)
                if PyBytes_GET_SIZE(context) != opened[at].rows * self.row_bytes:
                    return None
                opened[at].context = PyBytes_AS_STRING(context)
                try:
                    opened[at].decided_us = one.decided_us
                    opened[at].began_us = one.began_us
                    opened[at].decision_us = one.decision_us
                except OverflowError:
                    return None
                if not self._open(buffers, one, &opened[at]):
                    return None
                if (
                    opened[at].features.shape[1] != opened[0].features.shape[1]
                    or opened[at].probabilities.shape[1]
                    != opened[0].probabilities.shape[1]
                ):
                    return None
                contexts.append(context)
                codes.append(coded)
                rows += opened[at].rows
            if not 0 < rows <= self.most_rows:
                return None
            return self._body(opened, count, rows, codes, first)
        finally:
            PyMem_Free(opened)

    cdef bint _open(self, _Buffers buffers, object one, Batch* batch) except -1:
        cdef Py_ssize_t rows = batch.rows
        batch.features = buffers.open(
            one.features, True, False, 2, rows, 4, b"f", b"f"
        )
        batch.probabilities = buffers.open(
            one.probabilities, True, False, 2, rows, 4, b"f", b"f"
        )
        batch.score = buffers.open(one.score, True, False, 1, rows, 4, b"f", b"f")
        batch.degraded = buffers.open(one.degraded, True, False, 1, rows, 4, b"I", b"L")
        batch.decision = buffers.open(one.decision, True, False, 1, rows, 1, b"B", b"B")
        batch.rules = buffers.open(one.rules, True, False, 1, rows, 8, b"L", b"Q")
        return not (
            batch.features == NULL or batch.probabilities == NULL
            or batch.score == NULL or batch.degraded == NULL or batch.decision == NULL
            or batch.rules == NULL
        )

    cdef object _body(
        self, Batch* batches, Py_ssize_t count, Py_ssize_t rows, list codes,
        uint64_t first,
    ):
        cdef Py_ssize_t ids = self.ids.shape[0], fields = self.fields.shape[0]
        cdef Py_ssize_t number = FIXED + fields + ids + 1
        cdef Py_ssize_t wide = batches[0].features.shape[1]
        cdef Py_ssize_t outputs = batches[0].probabilities.shape[1]
        cdef Py_ssize_t text_bytes = 0, size, at, row, column, place, code
        cdef uint64_t* numbers = NULL  # [number, rows], then one of each column
        cdef uint64_t* zigzag
        cdef uint8_t* widths = NULL
        cdef uint64_t* values
        cdef uint64_t most
        cdef int64_t least, value
        cdef bytes body, fingerprints
        cdef char* to
        cdef char* prints
        cdef const char* source
        cdef Batch* batch
        cdef uint32_t four
        cdef uint16_t two
        if wide > 0xFFFF or outputs > 0xFFFF:
            return None
        numbers = <uint64_t*>PyMem_Malloc((number * rows + number) * 8 + 2 * number)
        if numbers == NULL:
            raise MemoryError
        try:
            zigzag = numbers + number * rows
            widths = <uint8_t*>(zigzag + number)
            place = 0
            for at in range(count):
                size = self._columns(&batches[at], numbers + place, rows, codes[at])
                if size < 0:
                    return None
                text_bytes += size
                place += batches[at].rows
            size = 8 + 8 + 8 + 4 + 2 + 2 + 2 + len(self.names) + number
            for column in range(number):
                values = numbers + column * rows
                least = <int64_t>values[0]
                for row in range(1, rows):
                    value = <int64_t>values[row]
                    if value < least:
                        least = value
                most = 0
                for row in range(rows):
                    # Wraps around, so that uint64 values viewed as int64 survive.
                    values[row] -= <uint64_t>least
                    if values[row] > most:
                        most = values[row]
                zigzag[column] = (<uint64_t>least << 1) ^ <uint64_t>(least >> 63)
                widths[2 * column] = _width_code(zigzag[column])
                widths[2 * column + 1] = _width_code(most)
                size += WIDTHS[widths[2 * column]]
                size += WIDTHS[widths[2 * column + 1]] * rows
            size += rows * (8 + 4 * (wide + outputs + 1)) + text_bytes
            body = PyBytes_FromStringAndSize(NULL, size)
            fingerprints = PyBytes_FromStringAndSize(NULL, 8 * rows)
            to = PyBytes_AS_STRING(body)
            memcpy(to, PyBytes_AS_STRING(self.writer), 8)
            memcpy(to + 8, &first, 8)
            memcpy(to + 16, &self.spec_hash, 8)
            four = <uint32_t>rows
            memcpy(to + 24, &four, 4)
            two = <uint16_t>wide
            memcpy(to + 28, &two, 2)
            two = <uint16_t>outputs
            memcpy(to + 30, &two, 2)
            two = <uint16_t>len(self.names)
            memcpy(to + 32, &two, 2)
            to += 34
            memcpy(to, PyBytes_AS_STRING(self.names), len(self.names))
            to += len(self.names)
            for column in range(number):
                to[0] = <char>(widths[2 * column] << 4 | widths[2 * column + 1])
                to += 1
            for code in range(1, 5):
                for column in range(number):
                    if widths[2 * column] == code:
                        memcpy(to, &zigzag[column], WIDTHS[code])  # little-endian
                        to += WIDTHS[code]
            for code in range(1, 5):
                for column in range(number):
                    if widths[2 * column + 1] == code:
                        to = _narrow(to, numbers + column * rows, rows, code)
            prints = PyBytes_AS_STRING(fingerprints)
            place = 0
            for at in range(count):
                source = batches[at].context + self.fingerprint
                for row in range(batches[at].rows):
                    memcpy(prints + 8 * place, source + row * self.row_bytes, 8)
                    place += 1
            memcpy(to, prints, 8 * rows)
            to += 8 * rows
            for at in range(count):
                batch = &batches[at]
                for row in range(batch.rows):
                    memcpy(to, <char*>batch.features.buf + 4 * wide * row, 4 * wide)
                    to += 4 * wide
                    memcpy(
                        to, <char*>batch.probabilities.buf + 4 * outputs * row,
                        4 * outputs,
                    )
                    to += 4 * outputs
                    memcpy(to, <char*>batch.score.buf + 4 * row, 4)
                    to += 4
            names = []
            for column in range(ids):
                for at in range(count):
                    for row in range(batches[at].rows):
                        source = batches[at].context + row * self.row_bytes
                        two = _u16(source + self.ids[column, 0])
                        source += self.ids[column, 1]
                        memcpy(to, source, two)
                        to += two
                        if column == 0:
                            names.append(PyBytes_FromStringAndSize(source, two))
            for at in range(count):
                for text in <list>codes[at]:
                    size = PyBytes_GET_SIZE(text)
                    memcpy(to, PyBytes_AS_STRING(text), size)
                    to += size
            return body, names, fingerprints
        finally:
            PyMem_Free(numbers)

    cdef Py_ssize_t _columns(
        self, Batch* batch, uint64_t* to, Py_ssize_t rows, list codes
    ) except? -1:
        """
        Write a batch's integers; return the bytes of its texts, -2 for a wrong one.
        """
        cdef Py_ssize_t row, at, place, text_bytes = 0
        cdef const char* source
        cdef uint32_t features_us
        cdef int64_t waited_us
        cdef uint16_t length
        for row in range(batch.rows):
            source = batch.context + row * self.row_bytes
            features_us = _u32(source + self.features_us)
            # As in NumPy, whole numbers wrap around.
            waited_us = <int64_t>(
                <uint64_t>batch.began_us
                - <uint64_t>_i64(source + self.arrival_us)
                - <uint64_t>features_us
            )
            to[DECIDED_US * rows] = <uint64_t>batch.decided_us
            to[EVENT_TIME_US * rows] = <uint64_t>_i64(source + self.event_time_us)
            to[CENTS * rows] = <uint64_t>_i64(source + self.cents)
            to[DEGRADED * rows] = (<uint32_t*>batch.degraded.buf)[row]
            to[AGE_MS * rows] = _u32(source + self.age_ms)
            to[APPLIED * rows] = (<const uint8_t*>source)[self.applied]
            to[LIST_HITS * rows] = _u32(source + self.list_hits)
            to[DECISION * rows] = (<uint8_t*>batch.decision.buf)[row]
            to[RULES * rows] = (<uint64_t*>batch.rules.buf)[row]
            to[FEATURES_US * rows] = features_us
            if waited_us < 0:
                waited_us = 0
            elif waited_us > MOST_U32:
                waited_us = MOST_U32
            to[MODEL_US * rows] = <uint64_t>waited_us
            to[DECISION_US * rows] = <uint32_t>batch.decision_us
            place = FIXED
            for at in range(self.fields.shape[0]):
                to[place * rows] = <uint64_t>_i64(source + self.fields[at])
                place += 1
            for at in range(self.ids.shape[0]):
                length = _u16(source + self.ids[at, 0])
                if length > self.id_bytes:
                    return -2
                to[place * rows] = length
                text_bytes += length
                place += 1
            text = codes[row]
            if type(text) is not bytes:
                return -2
            to[place * rows] = PyBytes_GET_SIZE(text)
            text_bytes += PyBytes_GET_SIZE(text)
            to += 1
        return text_bytes


cdef char* _narrow(
    char* to, const uint64_t* values, Py_ssize_t rows, Py_ssize_t code
) noexcept nogil:
    """Write numbers in as few bytes as their code says; little-endian."""
    cdef Py_ssize_t row, width = WIDTHS[code]
    for row in range(rows):
        memcpy(to, &values[row], width)
        to += width
    return to


# Build the commands that store decisions.

cdef enum:
    STORED_HEAD = 26  # bytes of a value before its texts; stored_decisions.py

cdef uint32_t[256] CRC


cdef void _fill_crc() noexcept:
    cdef uint32_t at, value
    cdef int bit
    for at in range(256):
        value = at
        for bit in range(8):
            value = (value >> 1) ^ (<uint32_t>0xEDB88320 * (value & 1))
        CRC[at] = value


_fill_crc()


cdef uint32_t _crc32(uint32_t crc, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Continue a CRC-32 as zlib does."""
    cdef Py_ssize_t at
    crc = ~crc
    for at in range(size):
        crc = CRC[(crc ^ data[at]) & 0xFF] ^ (crc >> 8)
    return ~crc


def store_commands(
    decided_rows, *, bytes prefix, bytes release, int64_t extra_us, uint8_t version,
    Py_ssize_t most_bytes,
):
    """
    Build the commands of StoreCommands that store decisions.

    Args:
        decided_rows: DecidedRows.
        prefix: Start of the key of each decision.
        release: Release that decided.
        extra_us: Added to the time of a decision, gives how long it is valid.
        version: First byte of a value.
        most_bytes: Longest value.

    Returns:
        Commands, and the ids of their decisions; None for rows without the usual types.
    """
    cdef list names = decided_rows.transaction_id, codes = decided_rows.reason_codes
    cdef Py_ssize_t rows = len(names), row, size, named = len(release), coded
    cdef _Buffers buffers = _Buffers(5)
    cdef Py_buffer* decided = buffers.open(
        decided_rows.decided_us, True, False, 1, rows, 8, b"l", b"q"
    )
    cdef Py_buffer* prints = buffers.open(
        decided_rows.fingerprint, True, False, 1, rows, 8, b"L", b"Q"
    )
    cdef Py_buffer* decision = buffers.open(
        decided_rows.decision, True, False, 1, rows, 1, b"B", b"B"
    )
    cdef Py_buffer* score = buffers.open(
        decided_rows.score, True, False, 1, rows, 4, b"f", b"f"
    )
    cdef Py_buffer* degraded = buffers.open(
        decided_rows.degraded, True, False, 1, rows, 4, b"I", b"L"
    )
    cdef list commands = [], stored = []
    cdef bytes value, name, text
    cdef char* to
    cdef int64_t left_us
    cdef uint32_t crc
    cdef uint16_t two
    if (
        decided == NULL or prints == NULL or decision == NULL or score == NULL
        or degraded == NULL or len(codes) != rows or most_bytes > 0xFFFF
    ):
        return None
    for row in range(rows):
        left_us = <int64_t>((<uint64_t*>decided.buf)[row] + <uint64_t>extra_us)
        if left_us < 1000:
            continue
        name, text = names[row], codes[row]
        coded = len(text)
        size = STORED_HEAD + named + coded
        if size > most_bytes:
            continue
        value = PyBytes_FromStringAndSize(NULL, size)
        to = PyBytes_AS_STRING(value)
        to[0] = <char>version
        to[1] = (<char*>decision.buf)[row]
        two = <uint16_t>named
        memcpy(to + 2, &two, 2)
        memcpy(to + 8, <char*>prints.buf + 8 * row, 8)
        memcpy(to + 16, <char*>degraded.buf + 4 * row, 4)
        memcpy(to + 20, <char*>score.buf + 4 * row, 4)
        two = <uint16_t>coded
        memcpy(to + 24, &two, 2)
        memcpy(to + STORED_HEAD, PyBytes_AS_STRING(release), named)
        memcpy(to + STORED_HEAD + named, PyBytes_AS_STRING(text), coded)
        crc = _crc32(0, <uint8_t*>to, 4)
        crc = _crc32(crc, <uint8_t*>to + 8, size - 8)
        memcpy(to + 4, &crc, 4)
        commands.append((b"SET", prefix + name, value, b"NX", b"PX", left_us // 1000))
        stored.append(name)
    return commands, stored

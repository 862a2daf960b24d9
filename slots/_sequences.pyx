"""The book of active requests. The face is table.py.

Calls hold the GIL: each is a microsecond, and holding it makes each of them atomic.
"""

from cython cimport boundscheck, final, wraparound
from libc.math cimport isfinite
from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._blocks cimport MOVED, WHOLE, Block, Holder, block_holders, blocks_find, blocks_trim
from ._book cimport NONE, OUTPUT_GROWN, OUTPUT_NO_MEMORY, OUTPUT_REFUSED, Book, Load, Request
from ._book cimport (
    book_add,
    book_compact,
    book_complete_prefill,
    book_free,
    book_fresh_hash,
    book_in_use,
    book_init,
    book_is_sparse,
    book_loads,
    book_output,
    book_potential,
    book_potential_of,
    book_release,
    book_touch,
    has_load,
)

import numpy

cdef object new_array = numpy.empty
cdef object FLOAT64 = numpy.dtype(numpy.float64)
cdef object INT64 = numpy.dtype(numpy.int64)
cdef object UINT64 = numpy.dtype(numpy.uint64)

cdef enum:
    MAX_WORKERS = 1 << 20   # bound of worker numbers, against a number that is none


@final
cdef class SequenceBook:
    def __cinit__(self, *args):
        book_init(&self.book)
        self.records = {}
        self.ids = []

    def __init__(self, uint32_t block_size, double expiry_s, uint64_t max_entries):
        if block_size == 0:
            raise ValueError("block_size must be at least 1")
        if not expiry_s > 0:
            raise ValueError("expiry_s must be greater than 0")
        if max_entries == 0:
            raise ValueError("max_entries must be at least 1")
        self.book.block_size = block_size
        self.expiry = expiry_s
        self.book.max_entries = max_entries

    def __dealloc__(self):
        book_free(&self.book)

    # Workers

    @property
    def capacity(self):
        return self.book.n_loads

    def has_worker(self, int64_t number):
        return has_load(&self.book, number)

    def reach(self, int64_t number):
        if not 0 <= number < MAX_WORKERS:
            raise ValueError(f"worker number {number} is not in 0..{MAX_WORKERS - 1}")
        if book_loads(&self.book, <uint32_t>number + 1) < 0:
            raise MemoryError

    def add_worker(self, int64_t number):
        if has_load(&self.book, number):
            raise ValueError(f"worker number {number} is in use")
        self.reach(number)
        self.book.loads[number].present = True

    def remove_worker(self, int64_t number):
        if not has_load(&self.book, number):
            raise ValueError(f"worker number {number} is not in use")
        dropped = []
        while self.book.loads[number].first != NONE:
            dropped.append(self._release(self.book.loads[number].first))
        self.book.loads[number].present = False
        self._trim()
        return dropped

    # Requests

    @property
    def total_requests(self):
        return self.book.live

    def add_request(
        self,
        str request_id not None,
        int64_t number,
        hashes,
        uint32_t isl,
        uint32_t prefill_tokens,
        uint32_t expected_output_tokens,
        double now,
    ):
        cdef uint64_t count = 0
        cdef const uint64_t* first = NULL
        cdef const uint64_t[::1] array
        if type(hashes) is bytes:  # a memoryview of them, or an array, would take longer to make
            count = <uint64_t>len(<bytes>hashes) // sizeof(uint64_t)
            first = <const uint64_t*><const char*><bytes>hashes
        elif hashes is not None:
            array = hashes
            count = <uint64_t>array.shape[0]
            first = &array[0] if count else NULL
        return self.book_request(
            request_id, number, first, count, isl, prefill_tokens, expected_output_tokens, now
        )

    cdef bint book_request(
        self, str request_id, int64_t number, const uint64_t* first, uint64_t count, uint32_t isl,
        uint32_t prefill_tokens, uint32_t expected_output_tokens, double now,
    ) except -1:
        cdef uint32_t record
        if not has_load(&self.book, number):
            raise ValueError(f"worker number {number} is not in use")
        self._see(now)
        if request_id in self.records:
            self.duplicates += 1
            return False
        if self.book.entries + 1 + count > self.book.max_entries or count >= NONE:
            self.refused += 1
            return False
        record = book_add(
            &self.book,
            <uint32_t>number,
            first,
            <uint32_t>count,
            isl,
            prefill_tokens,
            expected_output_tokens,
        )
        if record == NONE:
            raise MemoryError
        if record < <uint32_t>len(self.ids):
            self.ids[record] = request_id
        else:
            self.ids.append(request_id)
        self.records[request_id] = record
        return True

    def mark_prefill_completed(self, str request_id not None):
        cdef int64_t record = self._record(request_id)
        if record < 0:
            return False
        book_complete_prefill(&self.book, <uint32_t>record)
        return True

    def add_output_tokens(self, str request_id not None, uint32_t generated):
        cdef int64_t record = self._record(request_id)
        cdef int done
        if record < 0:
            return False
        done = book_output(&self.book, <uint32_t>record, generated)
        if done == OUTPUT_NO_MEMORY:
            raise MemoryError
        if done == OUTPUT_REFUSED:
            self.refused += 1
        return done == OUTPUT_GROWN

    def touch(self, str request_id not None, double now):
        cdef int64_t record = self._record(request_id)
        self._see(now)
        if record < 0:
            return False
        book_touch(&self.book, <uint32_t>record)
        return True

    def free(self, str request_id not None):
        return self.drop(request_id)

    cdef bint drop(self, str request_id) except -1:
        cdef int64_t record = self._record(request_id)
        if record < 0:
            return False
        self._release(<uint32_t>record)
        self._trim()
        return True

    def expire(self, double now):
        dropped = []
        self._see(now)
        while (
            self.book.oldest != NONE
            and self.book.latest - self.book.requests[self.book.oldest].booked_at > self.expiry
        ):
            dropped.append(self._release(self.book.oldest))
        if dropped:
            self.expired += <uint64_t>len(dropped)
            self._trim()
        return dropped

    def worker_of(self, str request_id not None):
        cdef int64_t record = self._record(request_id)
        return None if record < 0 else self.book.requests[record].worker

    # Loads, by worker number

    # To make an array may run a finalizer, and that may add workers. So the number of entries is
    # read once, before, and nothing is read or written beyond it; it never shrinks.

    @boundscheck(False)  # arrays of n entries, indexed below n
    @wraparound(False)
    def potential(self, const uint64_t[::1] hashes, uint32_t isl, const uint32_t[::1] overlaps):
        cdef Book* book = &self.book
        cdef uint32_t n = book.n_loads
        cdef uint32_t number
        cdef int64_t cached
        cdef int64_t asked = 0 if hashes is None else hashes.shape[0]
        if overlaps is not None and overlaps.shape[0] != n:
            raise ValueError(f"{overlaps.shape[0]} overlaps for {n} worker numbers")
        decode_array = new_array(n, FLOAT64)
        prefill_array = new_array(n, INT64)
        cdef double[::1] decode = decode_array
        cdef int64_t[::1] prefill = prefill_array
        if n == 0:
            return decode_array, prefill_array
        book_potential(book, &hashes[0] if asked else NULL, asked, &decode[0], n)
        for number in range(n):
            cached = 0
            if overlaps is not None:
                cached = <int64_t>overlaps[number] * book.block_size
            prefill[number] = book.loads[number].prefill_tokens + max(0, isl - cached)
        return decode_array, prefill_array

    def potential_of(self, const uint64_t[::1] hashes, int64_t number):
        cdef int64_t asked = 0 if hashes is None else hashes.shape[0]
        if not has_load(&self.book, number):
            raise ValueError(f"worker number {number} is not in use")
        return book_potential_of(&self.book, &hashes[0] if asked else NULL, asked, <uint32_t>number)

    def active_blocks(self):
        cdef uint32_t n = self.book.n_loads
        array = new_array(n, INT64)
        cdef int64_t[::1] out = array
        if n:
            book_in_use(&self.book, &out[0], n)
        return array

    @boundscheck(False)  # an array of n entries, indexed below n
    @wraparound(False)
    def active_prefill_tokens(self):
        cdef uint32_t n = self.book.n_loads
        cdef uint32_t number
        array = new_array(n, INT64)
        cdef int64_t[::1] out = array
        for number in range(n):
            out[number] = self.book.loads[number].prefill_tokens
        return array

    @boundscheck(False)  # an array of n entries, indexed below n
    @wraparound(False)
    def active_requests(self):
        cdef uint32_t n = self.book.n_loads
        cdef uint32_t number
        array = new_array(n, INT64)
        cdef int64_t[::1] out = array
        for number in range(n):
            out[number] = self.book.loads[number].requests
        return array

    def fresh_hashes(self, Py_ssize_t count):
        array = new_array(count, UINT64)
        cdef uint64_t[::1] out = array
        cdef Py_ssize_t i
        for i in range(count):
            out[i] = book_fresh_hash(&self.book)
        return array

    # Care

    def memory_bytes(self):
        cdef uint64_t size = self.book.blocks.capacity * sizeof(Block)
        cdef uint64_t at
        cdef uint32_t record
        size += self.book.loads_capacity * sizeof(Load)
        size += self.book.requests_capacity * sizeof(Request)
        for at in range(self.book.blocks.capacity):
            if self.book.blocks.slots[at].count:
                size += self.book.blocks.slots[at].capacity * sizeof(Holder)
        if self.book.blocks.old != NULL:
            size += self.book.blocks.old_capacity * sizeof(Block)
        for record in range(self.book.used):
            if self.book.requests[record].hashes != NULL:
                size += self.book.requests[record].capacity * sizeof(uint64_t)
        return size

    def check_integrity(self):
        """Recounts everything from the requests; AssertionError where the sums do not say so."""
        cdef Book* book = &self.book
        cdef uint32_t record = book.oldest
        cdef uint32_t number, i, at
        cdef uint64_t slot, old_capacity
        cdef Block* block
        cdef Holder* holders
        cdef Request* request
        refs, prefill, count = {}, {}, {}
        held = live = 0
        older = NONE
        while record != NONE:
            request = &book.requests[record]
            assert request.older == older and request.booked_at <= book.latest
            assert older == NONE or book.requests[older].booked_at <= request.booked_at
            assert self.records[self.ids[record]] == record
            live += 1
            held += 1 + request.n_hashes
            prefill[request.worker] = prefill.get(request.worker, 0) + request.prefill_tokens
            count[request.worker] = count.get(request.worker, 0) + 1
            for i in range(request.n_hashes):
                key = (request.hashes[i], request.worker)
                refs[key] = refs.get(key, 0) + 1
            older, record = record, request.younger
        assert book.youngest == older
        assert live == book.live == len(self.records) and held == book.entries
        blocks, loss = {}, {}
        slots = 0
        old_capacity = book.blocks.old_capacity if book.blocks.old != NULL else 0
        for slot in range(book.blocks.capacity + old_capacity):
            block = &book.blocks.slots[slot]
            if slot >= book.blocks.capacity:
                block = &book.blocks.old[slot - book.blocks.capacity]
            if block.count in (0, MOVED):
                continue
            slots += 1
            assert blocks_find(&book.blocks, block.hash) == block
            assert (block.count == 1) == (block.capacity == 0)
            holders = block_holders(block)
            for at in range(block.count):
                assert at == 0 or holders[at - 1].worker < holders[at].worker
                assert refs.pop((block.hash, holders[at].worker)) == holders[at].refs
                assert holders[at].loss <= WHOLE
                assert holders[at].refs == 1 or holders[at].loss == 0
                number = holders[at].worker
                blocks[number] = blocks.get(number, 0) + 1
                loss[number] = loss.get(number, 0) + holders[at].loss
        assert not refs and slots == book.blocks.count
        for number in range(book.n_loads):
            assert book.loads[number].blocks == blocks.get(number, 0)
            assert book.loads[number].loss == loss.get(number, 0)
            assert book.loads[number].prefill_tokens == prefill.get(number, 0)
            assert book.loads[number].requests == count.get(number, 0)
            assert book.loads[number].present or book.loads[number].first == NONE
            i = 0
            older = NONE
            record = book.loads[number].first
            while record != NONE:
                assert book.requests[record].worker == number
                assert book.requests[record].before == older
                older, record = record, book.requests[record].after
                i += 1
            assert i == book.loads[number].requests and book.loads[number].last == older

    cdef int64_t _record(self, str request_id) except -2:
        record = self.records.get(request_id)
        return -1 if record is None else <int64_t>record

    cdef str _release(self, uint32_t record):
        """The one way out of the book, whatever ended the request."""
        request_id = <str>self.ids[record]
        book_release(&self.book, record)
        self.ids[record] = None
        del self.records[request_id]
        return request_id

    cdef int _trim(self) except -1:
        """Gives memory back after a burst; O(1) on average for each released request."""
        cdef uint32_t record
        blocks_trim(&self.book.blocks)
        if not book_is_sparse(&self.book):
            return 0
        # To make a list or a dict may run a finalizer, and that may change the book, so the book is
        # looked at after that. To fill them runs none: the collector tracks neither str nor int.
        ids = []
        records = {}
        if not book_is_sparse(&self.book):
            return 0
        record = self.book.oldest
        while record != NONE:
            request_id = self.ids[record]
            records[request_id] = len(ids)
            ids.append(request_id)
            record = self.book.requests[record].younger
        if book_compact(&self.book) == 0:
            self.ids = ids
            self.records = records
        return 0

    cdef int _see(self, double now) except -1:
        if not isfinite(now):
            raise ValueError(f"now must be finite, not {now}")
        # A clock that goes back must not break the order by age.
        if now > self.book.latest:
            self.book.latest = now
        return 0

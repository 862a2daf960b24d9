"""The book: which worker runs which requests, and how loaded that makes it.

Layout: `loads` by worker number; `requests` an arena addressed by uint32, its records linked in two
lists: all of them by age, and those of one worker. Free records are linked through `younger`.
Invariants: a Load is the sum over its worker's requests; `entries` is the sum of 1 + n_hashes over
all of them; only book_add adds to these sums and only book_release takes from them, but for output
blocks (book_output) and the end of a prefill.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from ._blocks cimport WHOLE, Blocks

cdef enum:
    NONE = 0xFFFFFFFF       # no record
    MIN_REQUESTS = 64       # records allocated at least

cdef enum Output:           # what book_output did
    OUTPUT_SAME             # the output still ends in the block it ended in before
    OUTPUT_GROWN            # one block was added
    OUTPUT_REFUSED          # none was added, the book is full
    OUTPUT_NO_MEMORY

cdef struct Request:
    uint64_t* hashes        # sequence hashes held, own memory; NULL if there are none
    uint32_t n_hashes       # of them
    uint32_t capacity       # of `hashes`
    uint32_t worker         # dense worker number
    uint32_t prefill_tokens # prompt tokens still to be prefilled; 0 once that is done
    uint32_t isl            # prompt length in tokens
    uint32_t expected       # expected output tokens; 0: unknown
    uint64_t seen_blocks    # most blocks of prompt and output that were reported
    double booked_at        # monotonic seconds; never less than that of an older request
    uint32_t older          # neighbours by age, NONE at the ends
    uint32_t younger
    uint32_t before         # neighbours among the worker's requests, NONE at the ends
    uint32_t after

cdef struct Load:           # of one worker
    int64_t blocks          # distinct blocks its requests hold
    int64_t loss            # what fractional ones weigh less, in units of 1/WHOLE
    int64_t prefill_tokens  # sum over its requests
    uint32_t requests       # number of its requests
    uint32_t first          # its requests, NONE if there are none
    uint32_t last
    bint present            # the number is in use

cdef struct Book:
    Blocks blocks           # who holds which block
    Load* loads             # n_loads of them
    uint32_t n_loads        # one more than the highest worker number seen
    uint32_t loads_capacity # allocated
    Request* requests       # the arena
    uint32_t requests_capacity  # allocated
    uint32_t used           # records in use or free: those below were touched
    uint32_t free           # first free record, NONE if there is none
    uint32_t live           # requests booked
    uint32_t oldest         # ends of the list by age, NONE if there is none
    uint32_t youngest
    uint32_t block_size     # tokens in a block, > 0
    uint64_t entries        # see the invariants
    uint64_t max_entries    # bound of `entries`, kept by the caller of book_add
    uint64_t fresh          # hashes handed out by fresh_hash
    double latest           # greatest time seen

cdef int book_init(Book* book) except -1 nogil
cdef void book_free(Book* book) noexcept nogil

# Makes room for worker numbers below n. -1: no memory.
cdef int book_loads(Book* book, uint32_t n) noexcept nogil

# The one way into the book, booked at book.latest. The worker must be present. Returns the record;
# NONE, and nothing changed, without memory.
cdef uint32_t book_add(
    Book* book,
    uint32_t worker,
    const uint64_t* hashes,
    uint32_t count,
    uint32_t isl,
    uint32_t prefill_tokens,
    uint32_t expected,
) noexcept nogil

# The one way out of it.
cdef void book_release(Book* book, uint32_t record) noexcept nogil

cdef void book_complete_prefill(Book* book, uint32_t record) noexcept nogil

# Books a block more if the output has grown into one; returns an Output.
cdef int book_output(Book* book, uint32_t record, uint32_t generated) noexcept nogil

# Makes a request the youngest, at book.latest.
cdef void book_touch(Book* book, uint32_t record) noexcept nogil

# Sets potential[worker], for the worker numbers below n, to the blocks that it would have with them.
cdef void book_potential(
    const Book* book, const uint64_t* hashes, int64_t count, double* potential, uint32_t n
) noexcept nogil

# The same of one worker.
cdef int64_t book_potential_of(
    const Book* book, const uint64_t* hashes, int64_t count, uint32_t worker
) noexcept nogil

# A hash that no other call returns.
cdef uint64_t book_fresh_hash(Book* book) noexcept nogil

# Moves the records, oldest first, to 0, 1, 2 ... of a smaller arena. -1: no memory, unchanged.
cdef int book_compact(Book* book) noexcept nogil


cdef inline bint book_is_sparse(const Book* book) noexcept nogil:
    """Most of the arena is unused: time for book_compact."""
    return book.requests_capacity > MIN_REQUESTS and book.live * 8 < book.requests_capacity


cdef inline bint has_load(const Book* book, int64_t number) noexcept nogil:
    """The number is a worker's."""
    return 0 <= number < book.n_loads and book.loads[number].present


cdef inline void book_in_use(const Book* book, int64_t* in_use, uint32_t n) noexcept nogil:
    """Set in_use[worker], for the worker numbers below n <= n_loads, to the blocks it has."""
    cdef uint32_t number
    for number in range(n):
        in_use[number] = load_blocks(&book.loads[number])


cdef inline int64_t load_blocks(const Load* load) noexcept nogil:
    """The weight of a worker's blocks, rounded half up."""
    return (load.blocks * WHOLE - load.loss + WHOLE // 2) // WHOLE

"""A reader of the index that times its reads, without the interpreter."""
from libc.stdint cimport uint32_t, uint64_t

from ....indexer.event_index._actor cimport IndexActor
from ....base.native._mix cimport GOLDEN, splitmix64

cdef extern from * nogil:
    uint32_t load_flag "__atomic_load_n" (const uint32_t*, int)
    int ACQUIRE "__ATOMIC_ACQUIRE"

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int CLOCK_MONOTONIC
    int clock_gettime(int, timespec*)
    int nanosleep(const timespec*, timespec*)

cdef enum:
    MAX_NUMBERS = 4096  # most workers whose overlaps a reader can take


cdef inline uint64_t now_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <uint64_t>now.tv_sec * 1000000000 + <uint64_t>now.tv_nsec


cdef uint64_t read_all(
    IndexActor actor,
    const uint64_t* hashes,
    const uint32_t* starts,
    uint32_t n_prompts,
    uint32_t n_numbers,
    uint64_t seed,
    uint32_t mean_gap_us,
    uint32_t* each_ns,
    uint64_t capacity,
    const uint32_t* stop,
) noexcept nogil:
    cdef uint32_t out[MAX_NUMBERS]
    cdef uint64_t count = 0, began
    cdef uint32_t prompt
    cdef timespec gap
    cdef uint64_t drawn
    while count < capacity and load_flag(stop, ACQUIRE) == 0:
        drawn = splitmix64(seed)
        seed += GOLDEN
        prompt = <uint32_t>(drawn >> 33) % n_prompts
        if mean_gap_us != 0:
            gap.tv_sec = 0
            gap.tv_nsec = <long>((drawn >> 33) % (2000 * <uint64_t>mean_gap_us))
            nanosleep(&gap, NULL)
        began = now_ns()
        actor.read_overlaps(
            hashes + starts[prompt], starts[prompt + 1] - starts[prompt], out, n_numbers
        )
        each_ns[count] = <uint32_t>min(now_ns() - began, <uint64_t>0xFFFFFFFF)
        count += 1
    return count


def read_prompts(
    IndexActor actor not None,
    const uint64_t[::1] hashes not None,
    const uint32_t[::1] starts not None,
    uint32_t numbers,
    *,
    uint64_t seed,
    uint32_t mean_gap_us,
    uint32_t[::1] each_ns not None,
    const uint32_t[::1] stop not None,
):
    """Match prompts, picked at random, until `stop[0]` is set or `each_ns` is full of their times.

    Prompt i is hashes[starts[i]:starts[i + 1]]. Between two matches it sleeps for a random time of
    this mean; 0: not at all. Returns how many there were.
    """
    cdef uint64_t count
    if not 0 < numbers <= MAX_NUMBERS or starts.shape[0] < 2 or each_ns.shape[0] == 0:
        raise ValueError("no prompts, no array for times, or too many workers")
    if stop.shape[0] == 0 or starts[starts.shape[0] - 1] > hashes.shape[0]:
        raise ValueError("no flag to stop by, or prompts beyond the hashes")
    with nogil:
        count = read_all(
            actor,
            &hashes[0],
            &starts[0],
            <uint32_t>starts.shape[0] - 1,
            numbers,
            seed,
            mean_gap_us,
            &each_ns[0],
            each_ns.shape[0],
            &stop[0],
        )
    return count

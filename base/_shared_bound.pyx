"""Kernel: an amount in use, by caller. The face: shared_bound.py."""

from libc.stdint cimport int64_t


cdef class AmountInUse:
    """What is taken and given back; `refusal` says what stands in the way."""

    cdef readonly int64_t most
    cdef readonly int64_t most_each
    cdef readonly int64_t used
    cdef public object on_given_back
    cdef dict _by_caller            # caller -> what it has in use, above 0

    def __init__(self, int64_t most, int64_t most_each):
        self.most, self.most_each = most, most_each
        self._by_caller = {}

    def of(self, str caller not None):
        return self._of(caller)

    cdef int64_t _of(self, str caller) except -1:
        found = self._by_caller.get(caller)
        return 0 if found is None else found

    def take(self, str caller not None, int64_t amount=1):
        cdef int64_t own = self._of(caller)
        if amount > self.most - self.used or amount > self.most_each - own:
            return self.refusal(caller, amount)
        self._by_caller[caller] = own + amount
        self.used += amount
        return None

    def give_back(self, str caller not None, int64_t amount=1):
        cdef int64_t left = <int64_t>self._by_caller[caller] - amount
        if left < 0:
            raise AssertionError("more is given back than was taken")
        if left:
            self._by_caller[caller] = left
        else:
            del self._by_caller[caller]
        self.used -= amount
        if self.on_given_back is not None:
            self.on_given_back(amount)

    def refusal(self, str caller not None, int64_t amount=1):
        raise NotImplementedError

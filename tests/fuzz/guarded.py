"""Memory that ends where a message does."""

import ctypes
import mmap


class Guarded:
    """A buffer that ends where readable memory ends: a byte read beyond it kills the process."""

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.size = (size + page - 1) // page * page
        self.map = mmap.mmap(-1, self.size + page)
        view = (ctypes.c_char * (self.size + page)).from_buffer(self.map)
        libc = ctypes.CDLL(None, use_errno=True)
        guard = ctypes.c_void_p(ctypes.addressof(view) + self.size)
        assert libc.mprotect(guard, ctypes.c_size_t(page), 0) == 0, ctypes.get_errno()

    def put(self, data: bytes) -> memoryview:
        start = self.size - len(data)
        self.map[start : self.size] = data
        return memoryview(self.map)[start : self.size]

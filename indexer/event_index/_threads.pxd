"""The few calls of POSIX threads and of the compiler that the event index needs.

Atomic operations are sequentially consistent.
"""
from libc.stdint cimport uint32_t


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t*, void*, void* (*)(void*) noexcept nogil, void*)
    int pthread_join(pthread_t, void**)
    int pthread_mutex_init(pthread_mutex_t*, void*)
    int pthread_mutex_destroy(pthread_mutex_t*)
    int pthread_mutex_lock(pthread_mutex_t*)
    int pthread_mutex_unlock(pthread_mutex_t*)
    int pthread_cond_init(pthread_cond_t*, void*)
    int pthread_cond_destroy(pthread_cond_t*)
    int pthread_cond_signal(pthread_cond_t*)
    int pthread_cond_broadcast(pthread_cond_t*)
    int pthread_cond_wait(pthread_cond_t*, pthread_mutex_t*)

cdef extern from * nogil:
    """
    #define dr_add(p, n) __atomic_add_fetch((p), (n), __ATOMIC_SEQ_CST)
    #define dr_load(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
    #if defined(__x86_64__) || defined(__i386__)
    #define dr_relax() __builtin_ia32_pause()
    #elif defined(__aarch64__)
    #define dr_relax() __asm__ __volatile__("yield")
    #else
    #define dr_relax() ((void)0)
    #endif
    """
    uint32_t atomic_add "dr_add" (uint32_t* p, uint32_t n)   # returns the sum
    uint32_t atomic_load "dr_load" (const uint32_t* p)
    void cpu_relax "dr_relax" ()   # in a loop that waits for another processor

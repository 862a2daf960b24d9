"""The mock engine as native state machines: KV cache, scheduler, step times, one engine or a fleet.

Entered through its Python faces in workers/mocker; no clock and no I/O.
"""

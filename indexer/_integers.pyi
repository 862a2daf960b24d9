# The kernel has no Python face: _hashing and _wire read their arguments through it.

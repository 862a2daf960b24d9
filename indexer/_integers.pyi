# Nothing here is called from Python: _hashing and _writer read their arguments through it.

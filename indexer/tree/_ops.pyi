# Nothing here is called from Python: _radix and _actor are the ways in.

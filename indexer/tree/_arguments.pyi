# Nothing here is called from Python: _radix and the event index are the ways in.

# Nothing here is called from Python: _wire is the way in.

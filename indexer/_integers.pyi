from typing import final

# Nothing here is called from Python: _hashing and _writer read their arguments through it.

@final
class UIntView: ...

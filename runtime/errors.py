"""What can go wrong, split by who can do something about it."""


class RouterError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(RouterError):
    """The operator asked for what cannot be had; `key` is the option's name, if it is one's."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class InvalidRequestError(RouterError):
    """The caller's request can never succeed as it is; `field` names the part at fault."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class NoWorkersError(RouterError):
    """No worker may take this request now; trying again later may help.

    `overloaded`: there are workers, but they have all they can take.
    """

    def __init__(self, message: str, *, overloaded: bool = False) -> None:
        super().__init__(message)
        self.overloaded = overloaded


class WorkerError(RouterError):
    """A worker is gone or breaks the protocol."""

    def __init__(self, message: str, *, worker_id: int | None = None) -> None:
        super().__init__(message)
        self.worker_id = worker_id


class EventError(RouterError, RuntimeError):
    """An event that cannot be decoded, or contradicts what is known; `worker_id` if it was read.

    `code` names the contradiction. A RuntimeError too, because that is what Dynamo's index raises.
    """

    def __init__(
        self, message: str, *, worker_id: int | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.worker_id = worker_id
        self.code = code

"""One connection to a NATS server: of event planes, of the request plane and of the store."""

from .nats_link import MAX_UNSENT_BYTES, NatsLink

"""A PostgreSQL job queue for Django that operators can trust. These are its public names."""

from .backend import PGQueueBackend, PGQueueTask
from .declaring import task
from .enqueueing import enqueue_many
from .exceptions import Bury, Retry
from .version import __version__

__all__ = ["Bury", "PGQueueBackend", "PGQueueTask", "Retry", "__version__", "enqueue_many", "task"]

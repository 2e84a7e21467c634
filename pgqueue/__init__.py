"""A PostgreSQL job queue for Django that operators can trust. These are its public names."""

from .backend import PGQueueBackend, PGQueueTask, task
from .enqueueing import enqueue_many
from .exceptions import Bury, Retry

__version__ = "0.1.0.dev0"

__all__ = ["Bury", "PGQueueBackend", "PGQueueTask", "Retry", "enqueue_many", "task"]

"""A PostgreSQL job queue for Django that operators can trust. These are its public names."""

from .backend import PGQueueBackend, PGQueueTask
from .declaring import task
from .enqueueing import enqueue_many
from .exceptions import Bury, Retry
from .probes import CannotTell, DidNotHappen, Happened, StillGoing
from .version import __version__

__all__ = [
    "Bury",
    "CannotTell",
    "DidNotHappen",
    "Happened",
    "PGQueueBackend",
    "PGQueueTask",
    "Retry",
    "StillGoing",
    "__version__",
    "enqueue_many",
    "task",
]

"""Go on with bulk actions in the background: on a thread and a connection of its own, in no slot."""

from __future__ import annotations

import threading

from .. import bulk
from ..foreign import told
from ..logs import get_logger
from .surroundings import clean_up_for_good

logger = get_logger(__name__)

STOP_SECONDS = 5.0
"""Longest wait for the chunk under way of a process that ends."""


class BulkRunner(threading.Thread):
    """Sleeps until there is a hint that a bulk action runs, and runs chunks until none is left for it.

    A daemon: a chunk is one transaction, done or not, and others go on. It has a connection only while it works.
    """

    def __init__(self) -> None:
        super().__init__(name="pgqueue-bulk", daemon=True)
        self._due = threading.Event()
        self._stopped = threading.Event()

    def hint(self) -> None:
        """Say that a bulk action runs, or may."""
        self._due.set()

    def stop(self) -> None:
        """End after the chunk under way."""
        self._stopped.set()
        self._due.set()
        if self.is_alive():
            self.join(STOP_SECONDS)

    def run(self) -> None:
        """Run what there is whenever hinted. Whatever goes wrong, the next hint is followed."""
        while self._due.wait() and not self._stopped.is_set():
            self._due.clear()
            try:
                while not self._stopped.is_set() and bulk.run_in_background():
                    pass
            except Exception as error:
                logger.warning("bulk.failed %s", told(error))
            finally:
                clean_up_for_good()

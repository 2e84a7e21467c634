"""Leave with runs that cannot be stopped."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import NoReturn

from .. import execution
from ..exceptions import RunGoneError
from ..foreign import told
from ..holding import Held
from ..logs import get_logger
from ..protocol.connecting import connect
from ..protocol.settling import settle
from .exits import Exit
from .shutdown import set_deadline
from .watch import Run

logger = get_logger(__name__)


def leave(stuck: Sequence[Run], abandoned: Sequence[Held], *, alias: str, worker_id: int) -> NoReturn:
    """Write down that stuck runs have timed out and abandoned ones are gone, and end the process before anything else.

    This is the last act: as soon as the endings are committed, another worker may run the jobs, and nothing of
    these runs may still be alive then. What cannot be written in time is taken over once its lease has run out.
    """
    now = time.monotonic()
    endings = [execution.timed_out(run.held, run_seconds=now - run.began_at) for run in stuck]
    runs = {run.held for run in stuck}
    endings += [execution.interrupted(held, RunGoneError(held.lease.id)) for held in abandoned if held not in runs]
    status = Exit.STUCK if stuck else Exit.UNFIT
    logger.error("worker.leaving worker=%d stuck=%d abandoned=%d", worker_id, len(stuck), len(abandoned))
    try:
        set_deadline(status)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        settled = settle(connect(alias, role="worker"), worker_id=worker_id, endings=endings)
        for _, refusal in settled.refused:
            logger.error("worker.unsettled worker=%d %s", worker_id, told(refusal))
    except Exception as error:
        logger.error("worker.unsettled worker=%d %s", worker_id, told(error))
    finally:
        os._exit(status)

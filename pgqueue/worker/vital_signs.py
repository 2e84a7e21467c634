"""Whether threads of this process are still there, as the system sees it."""

from __future__ import annotations

import os
import threading
from pathlib import Path

TASKS = Path("/proc/self/task")


def gone(threads: dict[threading.Thread, int]) -> set[threading.Thread]:
    """Return those of the started threads that are over, given the number that the system knows each by.

    A thread that C code ends, as `pthread_exit` does, tells the interpreter nothing, and counts as alive there.
    """
    try:
        numbers = {int(name) for name in os.listdir(TASKS)}
    except OSError:  # Another system, or no descriptor left.
        return {thread for thread in threads if not thread.is_alive()}
    return {thread for thread, number in threads.items() if number not in numbers or not thread.is_alive()}

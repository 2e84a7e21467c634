"""What can be done to workers, their connections and the network. Each fault lasts for some seconds and ends with them.

A fault is a function of the world and a number of seconds; it returns how many times it struck.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from ..harness import until
from .world import ROLE, World

Fault = Callable[[World, float], int]

OF_A_ROLE = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s AND application_name ~ %s"
EVERYTHING = "."
CONNECTIONS = {
    "dispatcher": "^pgqueue worker$",
    "heartbeat": "^pgqueue heartbeat$",
    "listener": "^pgqueue listener$",
    "effects": "^pgqueue effects$",
    "Django's": "^(?!pgqueue)",
}


def turns(seconds: float, every: float) -> Iterator[int]:
    """Yield 0, 1, 2 and so on, one turn each time, until the seconds are over."""
    began = time.monotonic()
    number = 0
    while time.monotonic() < began + seconds:
        yield number
        number += 1
        time.sleep(max(0.0, min(began + number * every, began + seconds) - time.monotonic()))


def nothing(world: World, seconds: float) -> int:
    time.sleep(seconds)
    return 0


def kills(world: World, seconds: float) -> int:
    return _signals(world, seconds, signal.SIGKILL, every=1.5)


def drains(world: World, seconds: float) -> int:
    return _signals(world, seconds, signal.SIGTERM, every=1.0)


def _signals(world: World, seconds: float, number: int, *, every: float) -> int:
    chosen = random.Random(13)
    struck = 0
    for _ in turns(seconds, every):
        if alive := world.alive():
            chosen.choice(alive).send(number)
            struck += 1
    return struck


def freezes(world: World, seconds: float) -> int:
    """Stop one worker for longer than its lease, once or for as often as there is time."""
    chosen = random.Random(13)
    struck = 0
    for _ in turns(seconds, world.lease_seconds + 4):
        if alive := world.alive():
            worker = chosen.choice(alive)
            worker.send(signal.SIGSTOP)
            time.sleep(world.lease_seconds + 3)
            with suppress(ProcessLookupError):
                worker.send(signal.SIGCONT)
            struck += 1
    return struck


def children_killed(world: World, seconds: float) -> int:
    """Kill the processes of supervisors, and one supervisor each fourth time."""
    chosen = random.Random(13)
    struck = 0
    for number in turns(seconds, 2.0):
        supervisors = {worker.pid for worker in world.alive()}
        found = sorted(supervisors if number % 4 == 0 else world.processes().keys() - supervisors)
        if found:
            with suppress(ProcessLookupError):
                os.kill(chosen.choice(found), signal.SIGKILL)
            struck += 1
    return struck


def terminations(pattern: str) -> Fault:
    """End the sessions of the workers whose application's name is like the pattern, once a second."""

    def fault(world: World, seconds: float) -> int:
        return sum(len(world.observer.rows(OF_A_ROLE, ROLE, pattern)) for _ in turns(seconds, 1.0))

    return fault


def resets(world: World, seconds: float) -> int:
    """Cut every connection once a second."""
    struck = 0
    for _ in turns(seconds, 1.0):
        world.proxy.reset_all()
        struck += 1
    return struck


def half_open(world: World, seconds: float) -> int:
    """Lose every connection that there is, once, without a word to either end."""
    struck = world.proxy.lose_all()
    time.sleep(seconds)
    return struck


def half_open_role(role: str) -> Fault:
    def fault(world: World, seconds: float) -> int:
        # A heartbeat connects when it has something to renew.
        struck = until(lambda: world.proxy.lose(role), what=f"there is a connection of {role}")
        time.sleep(seconds)
        return struck

    return fault


def delays(world: World, seconds: float) -> int:
    """Pass everything on two seconds later, each way."""
    world.proxy.delay(2.0)
    time.sleep(seconds)
    world.proxy.delay(0.0)
    return 1


def silence(world: World, seconds: float) -> int:
    """Hold everything back for longer than a lease, then let it go on."""
    world.proxy.silence()
    time.sleep(max(seconds, world.lease_seconds + 4))
    world.proxy.silence(False)
    return 1


def refusals(world: World, seconds: float) -> int:
    """Refuse new connections and cut the old ones: a network that is down."""
    world.proxy.refuse()
    world.proxy.reset_all()
    time.sleep(seconds)
    world.proxy.refuse(False)
    return 1


def pooler_killed(world: World, seconds: float) -> int:
    """Kill PgBouncer every three seconds, and start it again a second later."""
    struck = 0
    for _ in turns(seconds, 3.0):
        assert world.pooler is not None
        world.pooler.kill()
        time.sleep(1.0)
        world.pooler.start()
        struck += 1
    return struck

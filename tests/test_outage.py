"""A dispatcher without a connection: the server is away, or the process is broken."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from pgqueue.protocol.settling import Ending, EndingKind, Settled
from pgqueue.worker.outage import FEWEST_FAILURES, Outage

LEASE_SECONDS = 60.0
AWAY = psycopg.OperationalError("server closed the connection unexpectedly")


class World:
    """A clock, and what the heartbeat says."""

    now = 0.0
    reachable = 1000.0

    def __call__(self) -> float:
        return self.now

    def reachable_seconds(self) -> float:
        return self.reachable


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def outage(world: World) -> Outage:
    def settle(endings: Sequence[Ending]) -> Settled:
        raise AWAY

    return Outage(world, lease_seconds=LEASE_SECONDS, settle_elsewhere=settle, clock=world)


def fail_for(outage: Outage, world: World, seconds: int, error: Exception = AWAY) -> None:
    for _ in range(seconds // 10):
        outage.fail(error)
        world.now += 10
    outage.fail(error)


def test_it_is_its_own_once_the_heartbeat_alone_got_through_for_a_lease(outage: Outage, world: World) -> None:
    fail_for(outage, world, 60)
    assert not outage.is_own()
    fail_for(outage, world, 10)
    assert outage.is_own()


@pytest.mark.parametrize("reachable", [0.0, 30.0], ids=["away for all", "just back"])
def test_a_server_that_is_away_for_the_heartbeat_too_is_waited_for(
    outage: Outage, world: World, reachable: float
) -> None:
    world.reachable = reachable
    fail_for(outage, world, 600)
    assert not outage.is_own()


def test_few_failures_are_none_of_it_however_long_they_take(outage: Outage, world: World) -> None:
    for _ in range(FEWEST_FAILURES - 1):
        outage.fail(AWAY)
        world.now += 100
    assert not outage.is_own()
    outage.fail(AWAY)
    assert outage.is_own()


def test_a_turn_that_gets_through_ends_it(outage: Outage, world: World) -> None:
    fail_for(outage, world, 70)
    outage.end()
    assert (outage.failures, outage.is_own()) == (0, False)
    fail_for(outage, world, 50)
    assert not outage.is_own()


@pytest.mark.parametrize(
    "refusal",
    [
        psycopg.errors.InsufficientPrivilege,
        psycopg.errors.UndefinedTable,
        psycopg.errors.QueryCanceled,
        psycopg.errors.ReadOnlySqlTransaction,
        psycopg.errors.DiskFull,
    ],
)
def test_a_refused_statement_came_through_a_connection(
    outage: Outage, world: World, refusal: type[psycopg.Error]
) -> None:
    """A fresh process would be told the same."""
    fail_for(outage, world, 600, refusal("no"))
    assert not outage.is_own()


@pytest.mark.parametrize("cut", [psycopg.errors.AdminShutdown, psycopg.errors.ConnectionFailure])
def test_a_connection_that_was_ended_was_no_answer(outage: Outage, world: World, cut: type[psycopg.Error]) -> None:
    fail_for(outage, world, 70, cut("gone"))
    assert outage.is_own()


def test_without_descriptors_it_is_its_own_wherever_the_server_is(
    outage: Outage, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(*args: Any) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    world.reachable = 0.0
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", no_descriptor)
        fail_for(outage, world, 70)
        assert outage.is_own()
    outage.fail(AWAY)
    assert not outage.is_own()


def test_late_endings_are_kept_for_some_time_only(outage: Outage, world: World) -> None:
    world.reachable = 0.0
    fail_for(outage, world, 600)
    assert not outage.is_too_long()
    fail_for(outage, world, 100)
    assert outage.is_too_long()


def test_endings_that_nobody_can_write_are_kept(outage: Outage) -> None:
    ending = Ending(EndingKind.COMPLETE, 1, 10)
    assert outage.rescue([ending]).busy == [ending]

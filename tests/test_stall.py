"""A dispatcher that stands still is told of, and does not do so for ever."""

from __future__ import annotations

import os

import pytest

from pgqueue.worker.stall import ANSWERS_SECONDS, STALLED_SECONDS, Stall


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stall(clock: Clock) -> Stall:
    return Stall(worker_id=7, lease_seconds=60, clock=clock)


def look_every_second(stall: Stall, clock: Clock, seconds: float) -> None:
    until = clock.now + seconds
    while clock.now < until:
        stall.look()
        clock.now += 1


def test_a_long_turn_is_told_of_ever_less_often(stall: Stall, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    stall.begin()
    look_every_second(stall, clock, STALLED_SECONDS)
    assert caplog.text == ""
    look_every_second(stall, clock, 100)
    assert [record.getMessage() for record in caplog.records] == [
        f"worker.dispatcher_stalled worker=7 seconds={seconds}" for seconds in (10, 20, 40, 80)
    ]


def test_sleep_is_no_turn(stall: Stall, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    stall.begin()
    stall.end()
    look_every_second(stall, clock, 1000)
    assert caplog.text == ""


def test_a_turn_that_never_ends_ends_the_process(
    stall: Stall, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left: list[int] = []
    monkeypatch.setattr(os, "_exit", left.append)
    stall.begin()
    look_every_second(stall, clock, 60 + ANSWERS_SECONDS)
    assert left == []
    stall.look()
    assert left == [75]
    assert "worker.stopping reason=dispatcher_stalled" in caplog.text

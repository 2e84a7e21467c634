"""The process for jobs that lost a lease: when it is started, with what, and which lanes who serves."""

from __future__ import annotations

import queue
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pgqueue.protocol.looking import Horizon
from pgqueue.states import Lane
from pgqueue.worker.agenda import ALONE, ISOLATED, Agenda, Source
from pgqueue.worker.isolation import OVERDUE_SECONDS, needs_quarantine
from pgqueue.worker.options import Options
from pgqueue.worker.pace import Pace, Pool
from pgqueue.worker.quarantine import Quarantine, command_for
from tests.test_agenda import PLAIN, Clock, horizon, make_lease, threads

OPTIONS = Options(alias="default", concurrency=8, lease_seconds=60.0, poll_seconds=10.0)
OTHERS = tuple(lane for lane in Lane if lane is not Lane.ALONE)


# -- which lanes ---------------------------------------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


def agenda_of(clock: Clock, *lanes: Lane) -> Agenda:
    paces = {Pool.THREADS: Pace(slots=4, prefetch_seconds=0.2, batch_size=100)}
    return Agenda(paces=paces, notify_window_seconds=0.05, max_jobs=None, lanes=lanes, clock=clock)


def overdue(*lanes: Lane, seconds: float = OVERDUE_SECONDS) -> Horizon:
    return replace(horizon(*lanes), isolated_seconds=seconds)


def sources(agenda: Agenda, seen: Horizon, *, held: int = 0) -> tuple[Source, ...]:
    agenda.see(seen, poll_seconds=10)
    return agenda.sources(held=threads(held))


def test_a_worker_with_a_quarantine_neither_claims_its_jobs_nor_waits_for_them(clock: Clock) -> None:
    agenda = agenda_of(clock, *OTHERS)
    clock.now += 3600
    for _ in range(100):
        assert sources(agenda, horizon(Lane.PLAIN, Lane.ALONE), held=1) == (PLAIN,)
        clock.now += 1
    assert sources(agenda, horizon(Lane.ALONE)) == ()
    assert agenda.is_empty()
    assert agenda.pause(held=threads(0), waiting=0) == 10


def test_after_a_takeover_a_worker_with_a_quarantine_looks_at_once(clock: Clock) -> None:
    agenda = agenda_of(clock, *OTHERS)
    agenda.see(horizon(), poll_seconds=10)
    assert not agenda.wants_look()
    agenda.expect(Lane.ALONE)
    assert agenda.wants_look()


def test_a_quarantine_claims_its_own_lane_only(clock: Clock) -> None:
    agenda = agenda_of(clock, Lane.ALONE)
    assert agenda.sources(held=threads(0)) == ()
    agenda.wake()
    assert sources(agenda, horizon(Lane.PLAIN, Lane.LANED, Lane.ISOLATED, Lane.BOUND)) == ()
    assert agenda.is_empty()
    assert sources(agenda, horizon(*Lane)) == (ALONE,)


def test_a_quarantine_takes_what_has_found_no_empty_process_for_long(clock: Clock) -> None:
    agenda = agenda_of(clock, Lane.ALONE)
    assert sources(agenda, overdue(Lane.ISOLATED, seconds=OVERDUE_SECONDS - 1)) == ()
    assert sources(agenda, overdue(Lane.ISOLATED)) == (ISOLATED,)
    assert sources(agenda, horizon(Lane.ISOLATED)) == ()


@pytest.mark.parametrize(
    ("seen", "needed"),
    [
        (horizon(), False),
        (horizon(Lane.PLAIN, Lane.LANED, Lane.BOUND), False),
        (horizon(Lane.ALONE), True),
        (overdue(Lane.ISOLATED, seconds=1), False),
        (overdue(Lane.ISOLATED), True),
    ],
)
def test_a_quarantine_is_needed_for_what_it_would_take(seen: Horizon, needed: bool) -> None:
    assert needs_quarantine(seen) is needed


def test_an_isolated_job_runs_in_an_empty_worker_that_has_a_quarantine(clock: Clock) -> None:
    agenda = agenda_of(clock, *OTHERS)
    clock.now += 3600
    assert sources(agenda, horizon(Lane.PLAIN, Lane.ISOLATED), held=1) == ()
    assert sources(agenda, horizon(Lane.PLAIN, Lane.ISOLATED)) == (ISOLATED,)
    agenda.get(ISOLATED, 1, asked=1)
    agenda.hold(ISOLATED, [make_lease(7, Lane.ISOLATED)])
    assert agenda.sources(held=threads(1)) == ()


def test_a_worker_without_a_quarantine_takes_one_job_of_either_kind(clock: Clock) -> None:
    agenda = agenda_of(clock, *Lane)
    assert sources(agenda, horizon(Lane.ALONE, Lane.ISOLATED)) == (ALONE,)
    agenda.get(ALONE, 0, asked=1)
    assert agenda.sources(held=threads(0)) == (ISOLATED,)


# -- the command ---------------------------------------------------------------------------------------------


def test_the_command_is_the_one_that_was_given_with_options_of_a_quarantine(monkeypatch: pytest.MonkeyPatch) -> None:
    script = str(Path(__file__).resolve())
    monkeypatch.setattr(sys, "argv", [script, "runworker", "--processes", "4", "--max-jobs=9"])
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    options = replace(OPTIONS, queues=("mails", "--odd"), excluded=())
    command = command_for(options, name="runworker", verbosity=2)
    assert command is not None
    words = list(command)
    assert words[0] == sys.executable
    assert words[words.index(script) + 1] == "runworker"
    assert {"--queue=mails", "--queue=--odd", "--concurrency=1", "--lease-seconds=60.0", "--verbosity=2"} <= set(words)
    assert not {"--processes", "--max-jobs=9", "4"} & set(words)


def test_a_worker_that_was_not_started_by_its_command_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a script of the project's own, which would do whatever it does once more."""
    monkeypatch.setattr(sys, "argv", ["serve.py", "--all"])
    assert command_for(OPTIONS, name="runworker", verbosity=1) is None


# -- the process ---------------------------------------------------------------------------------------------


Start = Callable[..., tuple[Quarantine, "queue.SimpleQueue[None]"]]


@pytest.fixture
def start() -> Iterator[Start]:
    started = []

    def start(script: str, deaf_seconds: float = 60.0) -> tuple[Quarantine, queue.SimpleQueue[None]]:
        ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        command = [sys.executable, "-c", script]
        quarantine = Quarantine(command, worker_id=7, on_end=lambda: ends.put(None), deaf_seconds=deaf_seconds)
        started.append(quarantine)
        quarantine.start()
        return quarantine, ends

    yield start
    for quarantine in started:
        quarantine.stop(wait=True)


def pauses(log: str) -> list[float]:
    return [float(pause) for pause in re.findall(r"quarantine\.ended .* pause_seconds=([\d.]+)", log)]


def run_times(quarantine: Quarantine, ends: queue.SimpleQueue[None], times: int) -> None:
    for _ in range(times):
        quarantine.want()
        ends.get(timeout=30)


def test_nothing_is_started_before_it_is_wanted(start: Start, tmp_path: Path) -> None:
    quarantine, ends = start(f"import sys; open({str(tmp_path / 'args')!r}, 'w').write(' '.join(sys.argv[1:]))")
    with pytest.raises(queue.Empty):
        ends.get(timeout=0.3)
    run_times(quarantine, ends, 1)
    assert re.fullmatch(r"--quarantine 7 \d+ \d+", (tmp_path / "args").read_text())


def test_one_that_did_its_work_is_started_again_at_once(start: Start, caplog: Any) -> None:
    caplog.set_level("INFO", logger="pgqueue")
    run_times(*start(""), 3)
    assert pauses(caplog.text) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("script", ["import os; os._exit(9)", "import sys; sys.exit(4)"], ids=["died", "idle"])
def test_one_that_died_or_found_nothing_is_started_after_a_pause_that_grows(
    start: Start, caplog: Any, script: str
) -> None:
    caplog.set_level("INFO", logger="pgqueue")
    run_times(*start(script), 3)
    first, second, third = pauses(caplog.text)
    assert first <= 0.5 <= second <= 1.0 <= third


def test_one_that_shows_no_sign_of_life_any_more_is_killed(start: Start, caplog: Any) -> None:
    """Frozen, or held in C by its task: every later job would wait for it."""
    beat_once = "import os, sys, time; os.write(int(sys.argv[-1]), b'.'); time.sleep(60)"
    quarantine, ends = start(beat_once, deaf_seconds=0.1)
    quarantine.want()
    ends.get(timeout=30)
    assert "quarantine.killing" in caplog.text
    assert "signal=SIGKILL" in caplog.text


def test_one_that_has_not_begun_or_whose_task_closed_the_pipe_is_not_killed(start: Start, caplog: Any) -> None:
    for script in (
        "import time; time.sleep(1.5)",
        "import os, sys, time; os.close(int(sys.argv[-1])); time.sleep(1.5)",
    ):
        quarantine, ends = start(script, deaf_seconds=0.0)
        quarantine.want()
        ends.get(timeout=30)
    assert "quarantine.killing" not in caplog.text


def test_a_drain_ends_the_process_and_starts_no_other(start: Start, caplog: Any) -> None:
    caplog.set_level("INFO", logger="pgqueue")
    quarantine, ends = start("import time; time.sleep(60)")
    quarantine.want()
    while "quarantine.started" not in caplog.text:
        with pytest.raises(queue.Empty):
            ends.get(timeout=0.02)
    quarantine.drain()
    ends.get(timeout=30)
    quarantine.want()
    quarantine.join(30)
    assert not quarantine.is_alive()
    assert caplog.text.count("quarantine.started") == 1
    assert "signal=SIGTERM" in caplog.text


def test_a_process_that_cannot_be_started_is_tried_again(caplog: Any) -> None:
    ends: queue.SimpleQueue[None] = queue.SimpleQueue()
    quarantine = Quarantine(["/nowhere/python"], worker_id=7, on_end=lambda: ends.put(None))
    quarantine.start()
    run_times(quarantine, ends, 2)
    quarantine.stop(wait=True)
    assert caplog.text.count("quarantine.failed error=FileNotFoundError") == 2

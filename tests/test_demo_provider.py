"""The simulated provider, as a process of its own, and the check against its ledger."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from demo_project import ledger
from demo_project.campaign import gateway
from demo_project.faults import Fault, Faults, draw

PROJECT = Path(__file__).resolve().parent.parent
PHONE = "+447700900001"

Answer = tuple[int, dict[str, Any], http.client.HTTPMessage]


@dataclass(frozen=True)
class Running:
    """A provider process under test."""

    url: str
    ledger: Path
    process: subprocess.Popen[str]

    def post(self, path: str, body: object, **headers: str) -> Answer:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=10)
        try:
            connection.request("POST", path, json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read()), response.headers
        finally:
            connection.close()

    def send(self, key: str, *, text: str = "hello", **headers: str) -> tuple[int, dict[str, Any]]:
        named = {"Idempotency-Key": key} | {name.replace("_", "-"): value for name, value in headers.items()}
        return self.post("/messages", {"to": PHONE, "text": text}, **named)[:2]

    def events(self) -> list[dict[str, Any]]:
        return ledger.read(self.ledger)

    def counts(self) -> Counter[str]:
        return Counter(entry["event"] for entry in self.events())


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start providers on one ledger; end them with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(*options: str) -> Running:
        path = tmp_path / "ledger.jsonl"
        command = [sys.executable, "-m", "demo_project.provider", "--ledger", str(path), *options]
        process = subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        return Running(process.stdout.readline().strip(), path, process)

    yield run
    for process in started:
        process.terminate()
        process.communicate(timeout=10)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a worker and may be killed."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield process
    process.kill()
    process.wait()


def test_a_message_is_sent_and_both_sides_of_it_are_in_the_ledger(start: Start) -> None:
    provider = start()

    status, body = provider.send("k1", X_Fence="7", X_Worker_Pid="12345")

    assert (status, body) == (201, {"message_id": "msg-000001"})
    request, effect = provider.events()
    facts = {"number": 1, "key": "k1", "nth": 1, "worker_pid": 12345, "fence": 7, "to": PHONE}
    assert request == {"at": request["at"], "event": "request", **facts}
    assert (effect["event"], effect["message_id"], effect["to"]) == ("effect", "msg-000001", PHONE)


def test_a_known_key_is_answered_with_the_first_message_id(start: Start) -> None:
    provider = start()

    answers = [provider.send("k1"), provider.send("k1"), provider.send("k2")]

    assert [body["message_id"] for _, body in answers] == ["msg-000001", "msg-000001", "msg-000002"]
    assert provider.counts() == {"request": 3, "effect": 2, "duplicate": 1}


def test_requests_at_once_under_one_key_have_one_effect(start: Start) -> None:
    provider = start("--latency-seconds", "0.1")
    at_once = threading.Barrier(8)

    def send() -> str:
        at_once.wait()
        return str(provider.send("k1")[1]["message_id"])

    with ThreadPoolExecutor(8) as pool:
        answers = {future.result() for future in [pool.submit(send) for _ in range(8)]}

    assert answers == {"msg-000001"}
    assert provider.counts() == {"request": 8, "effect": 1, "duplicate": 7}


def test_without_idempotency_every_request_has_an_effect(start: Start) -> None:
    provider = start("--no-idempotency")

    provider.send("k1")
    provider.send("k1")

    assert provider.counts() == {"request": 2, "effect": 2}


@pytest.mark.parametrize(
    ("ending", "counts"),
    [
        ("", {"request": 2, "effect": 1, "duplicate": 1}),
        (".hangs-up", {"request": 2, "effect": 1, "dropped": 1, "duplicate": 1}),
        (".loses", {"request": 2, "lost": 1, "effect": 1}),
        (".kills", {"request": 2, "effect": 1, "kill": 1, "duplicate": 1}),
    ],
)
def test_an_account_says_what_goes_wrong_the_first_time(
    start: Start, victim: subprocess.Popen[bytes], ending: str, counts: dict[str, int]
) -> None:
    provider = start()
    headers = {"Idempotency-Key": "p1", "X-Worker-Pid": str(victim.pid)}
    payment = {"to": f"acct-1{ending}", "text": "500"}

    if ending in (".hangs-up", ".loses"):
        with pytest.raises(http.client.RemoteDisconnected):
            provider.post("/payments", payment, **headers)
    else:
        provider.post("/payments", payment, **headers)

    status, body, _ = provider.post("/payments", payment, **headers)
    assert (status, body) == (201 if ending == ".loses" else 200, {"message_id": "pay-000001"})
    assert provider.counts() == counts
    assert (victim.poll() if ending != ".kills" else victim.wait(timeout=10)) == (-9 if ending == ".kills" else None)


def test_what_was_done_under_a_key_can_be_looked_up(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = start()
    provider.post("/payments", {"to": "acct-1", "text": "500"}, **{"Idempotency-Key": "payout:1:1:pay"})
    monkeypatch.setenv("SMS_PROVIDER_URL", provider.url)

    assert gateway.find("payments", "payout:1:1:pay") == "pay-000001"
    assert gateway.find("payments", "payout:1:2:pay") is None
    assert provider.counts() == {"request": 1, "effect": 1, "asked": 2}


def test_a_check_of_an_account_does_nothing_to_it(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = start()
    monkeypatch.setenv("SMS_PROVIDER_URL", provider.url)

    gateway.check("acct-1", key="k1", fence=1)
    with pytest.raises(gateway.RefusedError, match="422"):
        gateway.check("nobody", key="k2", fence=1)

    assert provider.counts() == {"request": 2, "refused": 1}


def test_a_key_of_another_message_is_refused(start: Start) -> None:
    provider = start()
    provider.send("k1", text="hello")

    assert provider.send("k1", text="bye")[0] == 422
    assert provider.counts() == {"request": 2, "effect": 1, "refused": 1}


def test_a_restarted_provider_remembers_the_keys(start: Start) -> None:
    first = start()
    first.send("k1")
    first.process.kill()
    first.process.wait()

    assert start().send("k1") == (200, {"message_id": "msg-000001"})
    assert first.counts() == {"request": 2, "effect": 1, "duplicate": 1}


def test_throttling_says_when_to_come_back_and_sends_nothing(start: Start) -> None:
    provider = start("--throttle-rate", "1", "--retry-after-seconds", "3")

    status, _, headers = provider.post("/messages", {"to": PHONE, "text": "hello"})

    assert (status, headers["Retry-After"]) == (429, "3")
    assert provider.counts() == {"request": 1, "throttled": 1}


def test_a_failure_comes_before_the_effect(start: Start) -> None:
    provider = start("--error-rate", "1")

    assert provider.send("k1")[0] == 503
    assert provider.counts() == {"request": 1, "failed": 1}


def test_hanging_up_comes_after_the_effect(start: Start) -> None:
    provider = start("--drop-rate", "1")

    with pytest.raises(http.client.RemoteDisconnected):
        provider.send("k1")

    assert provider.counts() == {"request": 1, "effect": 1, "dropped": 1}


@pytest.mark.parametrize("body", [{"to": "0800", "text": "hello"}, {"to": PHONE}])
def test_a_bad_message_is_refused_for_good(start: Start, body: dict[str, str]) -> None:
    provider = start()

    assert provider.post("/messages", body)[0] == 422
    assert provider.counts() == {"request": 1, "refused": 1}


def test_a_fence_lower_than_one_seen_before_is_refused(start: Start) -> None:
    provider = start("--fence-check")

    statuses = [provider.send("k1", X_Fence=fence)[0] for fence in ("5", "6", "5", "6")]

    assert statuses == [201, 200, 409, 200]
    assert provider.send("k2", X_Fence="1")[0] == 201


def test_without_the_check_a_stale_fence_is_served(start: Start) -> None:
    provider = start()

    assert [provider.send("k1", X_Fence=fence)[0] for fence in ("6", "5")] == [201, 200]


@pytest.mark.parametrize(("moment", "effects"), [("before", 0), ("after", 1)])
def test_the_chosen_request_kills_its_worker(
    start: Start, victim: subprocess.Popen[bytes], moment: str, effects: int
) -> None:
    provider = start("--kill-on-request", "2", "--kill-moment", moment)
    provider.send("k1", X_Worker_Pid=str(victim.pid))
    assert victim.poll() is None

    try:
        provider.send("k2", X_Worker_Pid=str(victim.pid))
    except http.client.RemoteDisconnected:
        assert moment == "before"

    assert victim.wait(timeout=10) == -signal.SIGKILL
    (kill,) = [entry for entry in provider.events() if entry["event"] == "kill"]
    assert (kill["number"], kill["pid"], kill["signal"], kill["moment"]) == (2, victim.pid, "SIGKILL", moment)
    assert sum(entry["event"] == "effect" and entry["key"] == "k2" for entry in provider.events()) == effects


def test_the_killing_waits_for_a_key_with_the_prefix(start: Start, victim: subprocess.Popen[bytes]) -> None:
    provider = start("--kill-on-request", "2", "--kill-key-prefix", "b")

    for key in ("b1", "a2", "b3"):
        provider.send(key, X_Worker_Pid=str(victim.pid))

    assert [entry["key"] for entry in provider.events() if entry["event"] == "kill"] == ["b3"]


def test_a_worker_can_be_frozen_instead(start: Start, victim: subprocess.Popen[bytes]) -> None:
    provider = start("--kill-on-request", "1", "--kill-signal", "SIGSTOP")

    assert provider.send("k1", X_Worker_Pid=str(victim.pid))[0] == 201

    stopped = os.waitid(os.P_PID, victim.pid, os.WSTOPPED)
    assert stopped is not None
    assert (stopped.si_code, stopped.si_status) == (os.CLD_STOPPED, signal.SIGSTOP)
    assert provider.counts() == {"request": 1, "effect": 1, "kill": 1}


def test_only_one_worker_is_killed(start: Start, victim: subprocess.Popen[bytes]) -> None:
    provider = start("--kill-on-request", "1")

    for key in ("k1", "k2", "k3"):
        provider.send(key, X_Worker_Pid=str(victim.pid))

    assert provider.counts()["kill"] == 1


@pytest.mark.parametrize("pid", ["0", "1", "-1"])
def test_groups_and_init_are_never_killed(start: Start, pid: str) -> None:
    provider = start("--kill-on-request", "1")

    assert provider.send("k1", X_Worker_Pid=pid)[0] == 400
    assert provider.counts() == {}


def test_the_control_changes_faults_while_running(start: Start) -> None:
    provider = start()
    provider.send("k1")

    status, state, _ = provider.post("/_control", {"error_rate": 1.0, "kill_on_request": 9})

    assert (status, state["requests"], state["effects"], state["kill_on_request"]) == (200, 1, 1, 9)
    assert provider.send("k2")[0] == 503


@pytest.mark.parametrize("change", [{"eror_rate": 1}, {"error_rate": 2}, {"kill_moment": "later"}, []])
def test_the_control_refuses_what_it_does_not_know(start: Start, change: object) -> None:
    assert start().post("/_control", change)[0] == 400


def test_faults_depend_on_the_seed_and_the_request_only() -> None:
    faults = Faults(seed=3, throttle_rate=0.2, error_rate=0.2, drop_rate=0.2, latency_seconds=1)
    drawn = [draw(faults, f"k{n}", 1) for n in range(500)]

    assert drawn == [draw(faults, f"k{n}", 1) for n in range(500)]
    assert drawn != [draw(Faults(**{**vars(faults), "seed": 4}), f"k{n}", 1) for n in range(500)]
    counts = Counter(fault for fault, _ in drawn)
    assert all(70 < counts[fault] < 130 for fault in (Fault.THROTTLE, Fault.ERROR, Fault.DROP))
    assert all(0.5 <= latency_seconds <= 1.5 for _, latency_seconds in drawn)


class TestGateway:
    """The client's errors say what a task can do about them."""

    @pytest.fixture
    def call(self, start: Start, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
        def send(*options: str, to: str = PHONE) -> str:
            monkeypatch.setenv("SMS_PROVIDER_URL", start(*options).url)
            return gateway.send(to, "hello", idempotency_key="k1", fence=1)

        return send

    def test_it_returns_the_message_id(self, call: Callable[..., str]) -> None:
        assert call() == "msg-000001"

    def test_a_throttled_call_says_when_to_come_back(self, call: Callable[..., str]) -> None:
        with pytest.raises(gateway.ThrottledError) as caught:
            call("--throttle-rate", "1", "--retry-after-seconds", "4")
        assert caught.value.retry_after_seconds == 4

    def test_a_refusal_is_final(self, call: Callable[..., str]) -> None:
        with pytest.raises(gateway.RefusedError, match="422"):
            call(to="nobody")

    @pytest.mark.parametrize("option", ["--error-rate", "--drop-rate"])
    def test_a_failing_provider_is_unavailable(self, call: Callable[..., str], option: str) -> None:
        with pytest.raises(gateway.UnavailableError):
            call(option, "1")

    def test_a_missing_provider_is_unavailable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("SMS_PROVIDER_URL", raising=False)
        with pytest.raises(gateway.UnavailableError, match="SMS_PROVIDER_URL is not set"):
            gateway.send(PHONE, "hello", idempotency_key="k1", fence=1)


class TestCheck:
    """One recipient's coupon and messages against the ledger."""

    phones = {1: "+441", 2: "+442"}

    sent: list[tuple[str, ...]] = [("coupon:7:1:sms", "+441", "m1"), ("coupon:7:2:sms", "+442", "m2")]

    def check(self, effects: list[tuple[str, ...]], coupons: list[tuple[int, str | None]]) -> dict[int, str]:
        entries = [{"event": "effect", "key": key, "to": to, "message_id": m} for key, to, m in effects]
        rows = [ledger.CouponRow(*row) for row in coupons]
        return ledger.check(entries, key_prefix="coupon:7:", phones=self.phones, coupons=rows).differing

    def test_one_coupon_and_one_message_each_agree(self) -> None:
        assert self.check(self.sent, [(1, "m1"), (2, "m2")]) == {}

    def test_a_second_message_differs_even_under_another_key(self) -> None:
        effects = [*self.sent, ("coupon:7:1:again", "+441", "m3")]
        assert self.check(effects, [(1, "m1"), (2, "m2")]) == {1: "2 messages instead of 1: m1, m3"}

    def test_a_message_that_never_went_out_differs(self) -> None:
        assert self.check(self.sent[:1], [(1, "m1"), (2, "m2")]) == {2: "0 messages instead of 1: none"}

    def test_a_missing_and_a_doubled_coupon_differ(self) -> None:
        differing = self.check(self.sent, [(1, "m1"), (1, "m1")])
        assert differing == {1: "2 coupons instead of 1", 2: "0 coupons instead of 1"}

    def test_a_message_id_that_was_not_stored_differs(self) -> None:
        differing = self.check(self.sent, [(1, None), (2, "m2")])
        assert differing == {1: "the coupon names message None, the provider sent m1"}

    def test_a_coupon_of_a_stranger_differs(self) -> None:
        differing = self.check(self.sent, [(1, "m1"), (2, "m2"), (3, "m3")])
        assert differing == {3: "has a coupon but is no recipient"}

    def test_other_campaigns_do_not_count(self) -> None:
        effects = [*self.sent, ("coupon:70:1:sms", "+441", "m3")]
        assert self.check(effects, [(1, "m1"), (2, "m2")]) == {}


class TestCheckPayouts:
    """Each payout and its job against the ledger."""

    accounts = {1: "acct-1", 2: "acct-2"}

    def check(self, effects: list[tuple[str, str]], *rows: ledger.PayoutRow) -> dict[int, str]:
        entries = [{"event": "effect", "key": "payout:7:pay", "to": to, "message_id": m} for to, m in effects]
        return ledger.check_payouts(
            entries, key_prefix="payout:7:", accounts=self.accounts, by_hand=[2], payouts=[*rows]
        )

    def paid(self, **given: Any) -> ledger.PayoutRow:
        usual = {"job_id": 10, "user_id": 1, "task": "pay", "recovery": "probe", "state": "succeeded"}
        return ledger.PayoutRow(**({**usual, "payment_id": "p1", "credits": 0} | given))

    def waiting(self, **given: Any) -> ledger.PayoutRow:
        return self.paid(**({"user_id": 2, "state": "unknown", "payment_id": None} | given))

    @pytest.mark.parametrize("effects", [[], [("acct-2", "p2")]])
    def test_one_payment_each_agrees_and_so_does_one_that_waits_whatever_came_of_it(self, effects: Any) -> None:
        assert self.check([("acct-1", "p1"), *effects], self.paid(), self.waiting()) == {}

    def test_a_second_payment_differs(self) -> None:
        differing = self.check([("acct-1", "p1"), ("acct-1", "p3")], self.paid(), self.waiting())
        assert differing == {1: "2 payments instead of 1: p1, p3"}

    def test_a_second_payment_of_one_that_waits_differs(self) -> None:
        effects = [("acct-1", "p1"), ("acct-2", "p2"), ("acct-2", "p3")]
        assert self.check(effects, self.paid(), self.waiting()) == {2: "2 payments instead of 1: p2, p3"}

    def test_a_payment_that_never_was_differs(self) -> None:
        assert self.check([], self.paid(), self.waiting()) == {1: "0 payments instead of 1: none"}

    def test_a_payment_under_another_name_differs(self) -> None:
        differing = self.check([("acct-1", "p9")], self.paid(), self.waiting())
        assert differing == {1: "the shop knows of payment p1, the provider of p9"}

    def test_a_job_that_should_wait_or_should_not_differs(self) -> None:
        differing = self.check([("acct-1", "p1")], self.paid(state="unknown"), self.waiting(state="succeeded"))
        assert differing == {1: "job 10 is unknown", 2: "job 10 is succeeded"}

    @pytest.mark.parametrize(("credits", "differing"), [(1, {}), (2, {1: "2 credits instead of 1"})])
    def test_a_credit_is_there_once(self, credits: int, differing: dict[int, str]) -> None:
        given = self.paid(recovery="transactional", payment_id=None, credits=credits)
        assert self.check([], given, self.waiting()) == differing

    def test_a_missing_and_a_strange_payout_differ(self) -> None:
        differing = self.check([("acct-1", "p1")], self.paid(), self.waiting(user_id=3))
        assert differing == {2: "has no payout", 3: "has a payout and is not on the list"}

"""Enqueueing: in the caller's transaction, once per operation key, and only what comes back as it went in."""

from __future__ import annotations

import datetime
import decimal
import time
import tracemalloc
import uuid
from collections import UserDict
from collections.abc import Callable
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction
from django.test import TestCase, override_settings
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from pgqueue import enqueue_many
from pgqueue.compat import InvalidTask, TaskResultStatus
from pgqueue.exceptions import OperationKeyConflictError, PayloadError, PayloadTooLargeError
from pgqueue.models import Job, JobPayload, OperationKey, Queue
from tests.inline import DUMMY, IMMEDIATE, row, work
from tests.testapp import plain_tasks
from tests.testapp.contract_tasks import double, give_back, insert_queue, nothing, with_options
from tests.testapp.tasks import add, echo

pytestmark = pytest.mark.django_db
committing = pytest.mark.django_db(transaction=True, available_apps=["pgqueue"])

SOON = datetime.datetime(2040, 2, 29, 12, 30, tzinfo=datetime.UTC)
EIGHT_IN_NEW_YORK = datetime.datetime(2040, 7, 1, 12, tzinfo=datetime.UTC)
EIGHT = EIGHT_IN_NEW_YORK.replace(hour=8, tzinfo=None)


# -- one INSERT in the caller's transaction ----------------------------------------------------------------


class TestQueries(TestCase):
    @pytest.mark.case("J04")
    def test_an_enqueue_is_one_query_inside_a_test_case(self) -> None:
        with self.assertNumQueries(1):
            double.enqueue(1)

    def test_an_enqueue_under_a_new_operation_key_is_one_query(self) -> None:
        with self.assertNumQueries(1):
            double.using(operation_key="k").enqueue(1)

    def test_many_jobs_are_one_query_a_thousand(self) -> None:
        # Two more for the savepoint of `enqueue_many`.
        with self.assertNumQueries(2 + 3):
            enqueue_many(double.bind(number) for number in range(2_500))


def test_an_enqueued_job_waits_with_its_arguments() -> None:
    result = give_back.enqueue(value={"a": [1.5]})
    job = row(result.id)
    payload = JobPayload.objects.get(job_id=job.id)
    assert (job.state, job.queue, job.task) == ("pending", "default", "tests.testapp.contract_tasks.give_back")
    assert (job.fence, job.version, job.attempts, job.max_attempts, job.lane) == (0, 1, 0, 8, 0)
    assert (payload.args, payload.kwargs) == (None, {"value": {"a": [1.5]}})
    assert job.run_at == job.created_at == result.enqueued_at


def test_a_job_without_arguments_has_no_payload_row() -> None:
    result = nothing.enqueue()
    assert not JobPayload.objects.filter(job_id=result.id).exists()


def test_the_options_of_the_declaration_and_of_using_reach_the_row() -> None:
    declared = row(with_options.enqueue().id)
    assert (declared.priority, declared.queue, declared.max_attempts) == (7, "mail", 3)
    assert (declared.tenant, declared.lane) == ("acme", 1)
    varied = with_options.using(
        priority=-100, queue_name="other", max_attempts=32_000, tenant="t", shard_key="s", operation_key="o"
    )
    other = row(varied.enqueue().id)
    assert (other.priority, other.queue, other.max_attempts) == (-100, "other", 32_000)
    assert (other.tenant, other.shard_key, other.operation_key, other.lane) == ("t", "s", "o", 1)


@committing
@pytest.mark.case("J01")
def test_a_rollback_takes_the_job_with_it() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012 the block is what is tested
        Queue.objects.create(name="q", created_at=timezone.now())
        double.enqueue(1)
        raise ZeroDivisionError
    assert Job.objects.count() == Queue.objects.count() == 0


@committing
@pytest.mark.case("J01")
def test_a_rolled_back_savepoint_takes_only_its_own_jobs() -> None:
    with transaction.atomic():
        kept = double.enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
            double.enqueue(2)
            enqueue_many([double.bind(3)])
            raise ZeroDivisionError
    assert [job.id for job in Job.objects.all()] == [int(kept.id)]


@committing
def test_nobody_sees_a_job_before_its_commit(queue_connection: Any) -> None:
    def count() -> int:
        return queue_connection.execute("SELECT count(*) FROM pgqueue_job").fetchone()[0]

    with transaction.atomic():
        double.enqueue(1)
        assert count() == 0
        assert Job.objects.count() == 1
    assert count() == 1


@committing
@pytest.mark.case("J03")
def test_a_hook_that_raises_after_the_commit_does_not_cost_the_job() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        transaction.on_commit(fail)
        job = double.enqueue(1)
    assert row(job.id).state == "pending"


@committing
@pytest.mark.case("J06")
def test_an_enqueue_leaves_the_callers_block_whole() -> None:
    """Also from inside a task that the immediate backend runs in the caller's block."""
    with override_settings(TASKS=IMMEDIATE):
        with transaction.atomic():
            session = connection.connection
            Queue.objects.create(name="outer", created_at=timezone.now())
            inner = plain_tasks.enqueue_inside.enqueue("inner")
            assert connection.connection is session
            assert connection.in_atomic_block
        assert inner.status == TaskResultStatus.SUCCESSFUL, inner.errors
    assert sorted(Queue.objects.values_list("name", flat=True)) == ["inner", "outer"]
    assert Job.objects.count() == 1


# -- when and where ----------------------------------------------------------------------------------------


def test_an_aware_time_is_when_the_job_becomes_due() -> None:
    tokyo = datetime.timezone(datetime.timedelta(hours=9))
    assert row(double.using(run_after=SOON.astimezone(tokyo)).enqueue(1).id).run_at == SOON


def test_a_naive_time_is_refused_with_time_zones() -> None:
    with pytest.raises(InvalidTask, match="run_after must be an aware datetime"):
        double.using(run_after=SOON.replace(tzinfo=None))


@pytest.fixture
def without_time_zones() -> Any:
    """USE_TZ=False in New York, and a connection that knows it."""
    with override_settings(USE_TZ=False, TIME_ZONE="America/New_York"):
        yield


def _instant(id: int | str) -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM run_at)::float8 FROM pgqueue_job WHERE id = %s", [int(id)])
        return cursor.fetchone()[0]


@committing
def test_without_time_zones_a_naive_time_is_the_sites(without_time_zones: None) -> None:
    task = double.using(run_after=EIGHT)
    ids = [task.enqueue(1).id, *enqueue_many([task.bind(1)])]
    assert [_instant(id) for id in ids] == [EIGHT_IN_NEW_YORK.timestamp()] * 2


@committing
def test_without_time_zones_naive_and_aware_times_go_into_one_statement(without_time_zones: None) -> None:
    tasks = [double.using(run_after=EIGHT), double.using(run_after=SOON), double]
    ids = enqueue_many(task.bind(1) for task in tasks)
    assert [_instant(id) for id in ids[:2]] == [EIGHT_IN_NEW_YORK.timestamp(), SOON.timestamp()]


@committing
def test_without_time_zones_a_result_tells_naive_times(without_time_zones: None) -> None:
    result = double.enqueue(4)
    assert work() == 0
    result.refresh()
    assert result.return_value == 8
    assert timezone.is_naive(result.enqueued_at)
    assert timezone.is_naive(result.finished_at)
    assert abs((timezone.now() - result.finished_at).total_seconds()) < 60


@pytest.mark.parametrize("priority", [-100, 0, 100])
def test_every_priority_django_allows_is_stored(priority: int) -> None:
    assert row(double.using(priority=priority).enqueue(1).id).priority == priority


def test_whole_floats_as_priorities_do_not_split_a_statement() -> None:
    ids = enqueue_many([double.using(priority=1.0).bind(1), double.using(priority=2).bind(1)])
    assert [row(id).priority for id in ids] == [1, 2]


@override_settings(TASKS={"default": {"BACKEND": "pgqueue.backend.PGQueueBackend", "QUEUES": ["mail"]}})
def test_queue_names_are_those_of_our_alias() -> None:
    assert row(double.using(queue_name="mail").enqueue(1).id).queue == "mail"
    with pytest.raises(InvalidTask, match="Queue 'sms' is not valid for backend"):
        double.using(queue_name="sms")
    with pytest.raises(InvalidTask, match="Queue 'default' is not valid for backend"):
        double.enqueue(1)


@pytest.mark.parametrize(
    "tasks",
    [{}, {"default": {**DUMMY["default"], "QUEUES": ["mail"]}}],
    ids=["no TASKS", "TASKS elsewhere"],
)
def test_any_queue_name_goes_where_no_alias_is_ours(tasks: dict[str, Any]) -> None:
    with override_settings(TASKS=tasks):
        assert row(double.using(queue_name="sms").enqueue(1).id).queue == "sms"


@pytest.mark.case("H03")
@pytest.mark.parametrize("name", ["queue_name", "tenant", "shard_key", "operation_key"])
@pytest.mark.parametrize(
    "value", ["", "a\0b", "\ud800", "x" * 201, 7], ids=["empty", "NUL", "surrogate", "long", "number"]
)
def test_a_name_that_postgresql_cannot_hold_is_refused_before_it_is_sent(name: str, value: Any) -> None:
    with pytest.raises(InvalidTask, match=f"^{name} must be a text of 1 to 200 characters"):
        double.using(**{name: value})


# -- operation keys ----------------------------------------------------------------------------------------


def test_the_same_key_and_arguments_give_the_first_job_back() -> None:
    first = give_back.using(operation_key="k").enqueue(value={"a": 1, "b": [2.0]})
    second = give_back.using(operation_key="k").enqueue(value={"b": [2], "a": 1})
    assert second.id == first.id
    assert second.enqueued_at == first.enqueued_at
    assert Job.objects.count() == 1


@pytest.mark.parametrize("value", [{"a": 1, "b": [True]}, {"a": 2}, None])
def test_the_same_key_with_other_arguments_is_a_conflict(value: Any) -> None:
    first = give_back.using(operation_key="k").enqueue(value={"a": 1, "b": [1]})
    with pytest.raises(OperationKeyConflictError) as caught:
        give_back.using(operation_key="k").enqueue(value=value)
    assert caught.value.job_id == int(first.id)
    assert (caught.value.key, caught.value.task) == ("k", give_back.module_path)
    assert Job.objects.count() == 1


def test_a_conflict_leaves_the_callers_transaction_usable() -> None:
    double.using(operation_key="k").enqueue(1)
    with pytest.raises(OperationKeyConflictError):
        double.using(operation_key="k").enqueue(2)
    double.enqueue(3)
    assert Job.objects.count() == 2


def test_positional_and_named_arguments_are_told_apart() -> None:
    double.using(operation_key="k").enqueue(1)
    with pytest.raises(OperationKeyConflictError):
        double.using(operation_key="k").enqueue(number=1)


@pytest.mark.case("E14")
def test_a_key_belongs_to_one_task() -> None:
    ids = {double.using(operation_key="k").enqueue(1).id, give_back.using(operation_key="k").enqueue(1).id}
    assert len(ids) == Job.objects.count() == OperationKey.objects.count() == 2


@committing
def test_a_rollback_frees_the_key() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        double.using(operation_key="k").enqueue(1)
        raise ZeroDivisionError
    assert row(double.using(operation_key="k").enqueue(2).id).state == "pending"


def test_a_key_stays_spent_when_the_job_is_gone() -> None:
    first = double.using(operation_key="k").enqueue(1)
    Job.objects.filter(pk=first.id).delete()
    again = double.using(operation_key="k").enqueue(1)
    assert (again.id, again.enqueued_at, again.args) == (first.id, first.enqueued_at, [1])
    with pytest.raises(OperationKeyConflictError):
        double.using(operation_key="k").enqueue(2)
    assert Job.objects.count() == 0


@committing
def test_a_spent_key_tells_how_the_first_job_ended() -> None:
    double.using(operation_key="k").enqueue(21)
    assert work() == 0
    assert double.using(operation_key="k").enqueue(21).return_value == 42


@pytest.fixture
def race(in_background: Any, wait_until_blocked: Any) -> Callable[..., Any]:
    """Enqueue under one key in a block, again on another connection; see it wait; end the block; tell its outcome."""

    def run(second: Callable[[], Any], *, rolled_back: bool) -> Any:
        ready: list[Any] = []

        def enqueue_there() -> Any:
            connections[DEFAULT_DB_ALIAS].ensure_connection()
            ready.append(connections[DEFAULT_DB_ALIAS].connection)
            try:
                return second()
            finally:
                connections[DEFAULT_DB_ALIAS].close()

        with transaction.atomic():
            first = double.using(operation_key="k").enqueue(1)
            future = in_background(enqueue_there)
            deadline = time.monotonic() + 10
            while not ready:
                assert time.monotonic() < deadline
            wait_until_blocked(ready[0])
            transaction.set_rollback(rolled_back)
        return first, future

    return run


@committing
def test_a_second_enqueue_waits_for_the_first_and_gets_its_job(race: Callable[..., Any]) -> None:
    first, future = race(lambda: double.using(operation_key="k").enqueue(1), rolled_back=False)
    assert future.result(10).id == first.id
    assert Job.objects.count() == 1


@committing
def test_a_second_enqueue_with_other_arguments_waits_and_is_refused(race: Callable[..., Any]) -> None:
    first, future = race(lambda: double.using(operation_key="k").enqueue(2), rolled_back=False)
    with pytest.raises(OperationKeyConflictError) as caught:
        future.result(10)
    assert caught.value.job_id == int(first.id)


@committing
def test_a_second_enqueue_gets_the_key_when_the_first_rolls_back(race: Callable[..., Any]) -> None:
    first, future = race(lambda: double.using(operation_key="k").enqueue(2), rolled_back=True)
    second = future.result(10)
    assert second.id != first.id
    assert [job.id for job in Job.objects.all()] == [int(second.id)]


@committing
def test_a_batch_waits_for_a_key_that_is_being_spent(race: Callable[..., Any]) -> None:
    keyed = double.using(operation_key="k")
    first, future = race(lambda: enqueue_many([double.bind(0), keyed.bind(1), double.bind(2)]), rolled_back=False)
    assert future.result(10)[1] == int(first.id)
    assert Job.objects.count() == 3


# -- many --------------------------------------------------------------------------------------------------


def test_ids_of_many_stand_where_their_calls_stood() -> None:
    calls = (
        (double.bind(number) if number % 2 else give_back.using(priority=number % 7).bind(number))
        for number in range(2_345)
    )
    ids = enqueue_many(calls)
    args = dict(JobPayload.objects.values_list("job_id", "args"))
    assert [args[id] for id in ids] == [[number] for number in range(2_345)]
    assert Job.objects.filter(task=double.module_path).count() == 1_172


def test_an_empty_batch_writes_nothing() -> None:
    assert enqueue_many([]) == []
    assert enqueue_many(iter(())) == []
    assert Job.objects.count() == 0


@pytest.mark.case("E15")
def test_a_spent_key_in_a_batch_gives_the_first_jobs_id_in_its_place() -> None:
    one = double.using(operation_key="k1")
    two = double.using(operation_key="k2")
    ids = enqueue_many([one.bind(1), double.bind(1), one.bind(1), double.bind(1), two.bind(1)])
    assert ids[2] == ids[0]
    assert len(set(ids)) == 4
    assert [row(id).operation_key for id in ids] == ["k1", None, "k1", None, "k2"]


def test_a_conflict_in_a_batch_writes_none_of_it() -> None:
    keyed = double.using(operation_key="k")
    with pytest.raises(OperationKeyConflictError):
        enqueue_many([double.bind(0), keyed.bind(1), keyed.bind(2)])
    assert Job.objects.count() == OperationKey.objects.count() == 0


def test_a_bad_argument_in_the_middle_is_named_and_nothing_is_written() -> None:
    calls = (give_back.bind(value={"at": timezone.now() if number == 2_500 else number}) for number in range(5_000))
    with pytest.raises(PayloadError) as caught:
        enqueue_many(calls)
    assert caught.value.path == "kwargs['value']['at']"
    assert Job.objects.count() == JobPayload.objects.count() == 0


@committing
def test_a_generator_that_raises_writes_nothing_and_keeps_the_callers_block() -> None:
    def calls() -> Any:
        yield from (double.bind(number) for number in range(1_500))
        raise ZeroDivisionError

    with transaction.atomic():
        kept = double.enqueue(0)
        with pytest.raises(ZeroDivisionError):
            enqueue_many(calls())
    assert [job.id for job in Job.objects.all()] == [int(kept.id)]


@committing
def test_a_hundred_thousand_jobs_are_written_in_seconds() -> None:
    began = time.monotonic()
    ids = enqueue_many(double.bind(number) for number in range(100_000))
    took = time.monotonic() - began
    print(f"enqueue_many: 100,000 jobs in {took:.1f} s, {100_000 / took:,.0f} a second")
    assert len(set(ids)) == Job.objects.count() == 100_000
    assert took < 60


@pytest.mark.parametrize(("jobs", "characters"), [(10_000, 2_000), (100, 200_000)])
def test_a_batch_is_never_in_memory_as_a_whole(jobs: int, characters: int) -> None:
    """Its payload alone is twenty megabytes."""
    tracemalloc.start()
    try:
        enqueue_many(give_back.bind("x" * (characters - number % 10)) for number in range(jobs))
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 15_000_000


# -- arguments ---------------------------------------------------------------------------------------------

COMES_BACK = [
    (None, None),
    (True, True),
    (0, 0),
    (2**53 + 1, 2**53 + 1),
    (-(10**400), -(10**400)),
    (1.5, 1.5),
    (1e16, 1e16),
    (5e-324, 5e-324),
    ("", ""),
    ("ß\u2028\U0001f600\\u0000", "ß\u2028\U0001f600\\u0000"),
    (mark_safe("<b>"), "<b>"),
    ([], []),
    ((1, (2,)), [1, [2]]),
    ({"a": {"b": [1]}}, {"a": {"b": [1]}}),
    ({"": 1}, {"": 1}),
]

REFUSED = [
    (datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), "isoformat"),
    (datetime.date(2026, 1, 1), "isoformat"),
    (datetime.timedelta(1), "total_seconds"),
    (decimal.Decimal("1.1"), r"str\(value\)"),
    (uuid.UUID(int=1), r"str\(value\)"),
    ({1, 2}, r"sorted\(value\)"),
    (frozenset({1}), r"sorted\(value\)"),
    (b"bytes", "base64"),
    ({1: "int key"}, r"str\(key\)"),
    ({None: "no key"}, r"str\(key\)"),
    (UserDict(a=1), r"dict\(value\)"),
    (Queue(name="q"), "value.pk"),
    (Queue.objects.none(), "values_list"),
    (gettext_lazy("lazy"), r"str\(value\)"),
    (object(), "object"),
    (print, "builtin_function"),
]


@committing
@pytest.mark.case("H08")
def test_every_type_that_is_accepted_comes_back_as_the_table_says() -> None:
    results = [give_back.enqueue(value) for value, _ in COMES_BACK]
    assert work() == 0
    for result, (given, expected) in zip(results, COMES_BACK, strict=True):
        result.refresh()
        assert result.status == TaskResultStatus.SUCCESSFUL, (given, result.errors)
        assert (type(result.return_value), result.return_value) == (type(expected), expected)
        assert result.args == [expected]


@pytest.mark.case("H08")
@pytest.mark.parametrize(("value", "advice"), REFUSED, ids=[type(value).__name__ for value, _ in REFUSED])
def test_every_other_type_is_refused_with_its_place_and_what_to_pass(value: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=rf"^kwargs\['value'\]\['deep'\]\[1\].*{advice}") as caught:
        give_back.enqueue(value={"deep": [0, value]})
    assert isinstance(caught.value, PayloadError)
    assert Job.objects.count() == 0


def test_a_lazy_object_is_refused_without_loading_it() -> None:
    def load() -> Any:
        raise AssertionError("loaded")

    with pytest.raises(TypeError):
        give_back.enqueue(SimpleLazyObject(load))


@pytest.mark.parametrize(
    "value", ["a\0b", "\ud800", {"a\0": 1}, {"\udfff": 1}, float("nan"), float("inf"), 10**5_000], ids=range(7)
)
@pytest.mark.case("H05")
@pytest.mark.case("H03")
def test_a_value_that_postgresql_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(PayloadError, match=r"^args\[0\]"):
        give_back.enqueue(value)
    assert Job.objects.count() == 0


@pytest.mark.case("H09")
def test_every_backend_refuses_a_set_alike_and_turns_a_tuple_into_a_list() -> None:
    results = [give_back.enqueue((1, 2)), plain_tasks.give_back.enqueue((1, 2))]
    for enqueue in (give_back.enqueue, plain_tasks.give_back.enqueue):
        with pytest.raises(TypeError):
            enqueue({1})
    for tasks in (IMMEDIATE, DUMMY):
        with override_settings(TASKS=tasks):
            results.append(plain_tasks.give_back.enqueue((1, 2)))
            with pytest.raises(TypeError):
                plain_tasks.give_back.enqueue({1})
    assert [result.args for result in results] == [[[1, 2]]] * 4


@pytest.mark.case("H17")
def test_an_option_passed_like_an_argument_is_told_where_it_goes() -> None:
    with pytest.raises(TypeError, match=r"task\.using\(run_after=\.\.\.\)\.enqueue"):
        double.enqueue(1, run_after=SOON)


@override_settings(PGQUEUE={"MAX_PAYLOAD_BYTES": 1_000})
def test_a_payload_may_be_just_as_large_as_the_setting_says() -> None:
    overhead = len('[""]')
    assert row(give_back.enqueue("x" * (1_000 - overhead)).id)
    with pytest.raises(PayloadTooLargeError, match=r"1,001 bytes of JSON, the limit is 1,000"):
        give_back.enqueue("x" * (1_001 - overhead))
    with pytest.raises(PayloadTooLargeError):
        give_back.enqueue("ß" * 499)
    with pytest.raises(PayloadTooLargeError):
        enqueue_many([give_back.bind("x" * 1_000)])


# -- numbers beyond what JavaScript can hold ---------------------------------------------------------------


@committing
@pytest.mark.case("H12")
def test_ids_and_numbers_beyond_two_to_the_53_stay_exact() -> None:
    first = 2**53 + 1
    with connection.cursor() as cursor:
        cursor.execute("SELECT setval(pg_get_serial_sequence('pgqueue_job', 'id'), %s, false)", [first])
    try:
        results = [give_back.enqueue(750727362669608961), give_back.using(operation_key="k").enqueue(2**63)]
        ids = enqueue_many([give_back.bind(first)])
        assert [int(result.id) for result in results] + ids == [first, first + 1, first + 2]
        assert work() == 0
        assert give_back.get_result(str(first)).return_value == 750727362669608961
        assert give_back.get_result(str(first + 1)).return_value == 2**63
        assert give_back.get_result(str(first + 2)).return_value == first
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SELECT setval(pg_get_serial_sequence('pgqueue_job', 'id'), 1000000)")


@committing
def test_a_task_enqueues_in_its_own_transaction() -> None:
    insert_queue.enqueue("q")
    assert work() == 0
    assert Queue.objects.filter(name="q").exists()


@pytest.mark.parametrize(
    ("given", "named", "says"),
    [
        ((), {}, "missing a required argument: 'left'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"left": 2}, "multiple values for argument 'left'"),
        ((1,), {"rihgt": 2}, "unexpected keyword argument 'rihgt'"),
        ((1,), {"priority": 2}, r"using\(priority=...\)"),
    ],
)
def test_arguments_that_the_function_does_not_take_are_refused_at_once(given: Any, named: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        add.enqueue(*given, **named)
    with pytest.raises(TypeError, match=says):
        enqueue_many([add.bind(1), add.bind(*given, **named)])
    assert not Job.objects.exists()


def test_arguments_that_it_takes_are_not() -> None:
    for given, named in (((1,), {}), ((1, 2), {}), ((1,), {"right": 2}), ((), {"left": 1})):
        add.enqueue(*given, **named)
    echo.enqueue()
    echo.enqueue(1, 2, a=3)
    assert Job.objects.count() == 6

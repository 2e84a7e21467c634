"""`manage.py pgqueue_act`: exit statuses and texts."""

from __future__ import annotations

import getpass
import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command, execute_from_command_line
from django.db import connection

from pgqueue.management.commands.pgqueue_act import NOT_DONE
from pgqueue.models import Job, OperatorAction, Queue
from pgqueue.states import State
from tests.factories import JobFactory, QueueFactory
from tests.races.rows import snapshot

pytestmark = pytest.mark.django_db


def run(verb: str, target: object, *options: str, version: object = 1, reason: str = "a test") -> str:
    """Run the command and return what it wrote."""
    out = StringIO()
    call_command("pgqueue_act", verb, str(target), f"--seen={version}", f"--reason={reason}", *options, stdout=out)
    return out.getvalue()


def refused(verb: str, target: object, *options: str, **given: Any) -> CommandError:
    """Run the command, which must refuse, and return its error."""
    with pytest.raises(CommandError) as caught:
        run(verb, target, *options, **given)
    return caught.value


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\udcff"])
@pytest.mark.parametrize("verb", ["pause_queue", "resume_queue"])
def test_a_queue_that_cannot_be_named_so_is_refused_in_words(verb: str, name: str) -> None:
    assert "is no name of a queue: give a text of 1 to 200 characters" in str(refused(verb, name, version=0))
    assert (Queue.objects.count(), OperatorAction.objects.count()) == (0, 0)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb"])
def test_so_is_a_limit_a_move_and_a_key(name: str) -> None:
    job = JobFactory()
    assert "names nothing that this verb bounds" in str(refused("set_limit", f"tenant:{name}", version=0))
    assert "'queue' is" in str(refused("move_queue", job.pk, f"--queue={name}"))
    if name:
        assert "'idempotency_key' cannot be stored" in str(refused("cancel", job.pk, f"--key={name}"))
    assert OperatorAction.objects.count() == 0


@pytest.mark.parametrize("option", ["--new-args", "--new-kwargs", "--result"])
def test_deep_json_is_refused_in_words(option: str) -> None:
    job = JobFactory(dead=True)
    assert "nested deeper than 100 levels" in str(refused("clone", job.pk, f"{option}={'[' * 5_000}"))


def test_arguments_that_cannot_be_stored_are_refused_in_one_sentence() -> None:
    job = JobFactory(dead=True)
    told = str(refused("clone", job.pk, '--new-args=["\\u0000"]'))
    assert told.endswith(".")
    assert not told.endswith("..")


def test_a_job_with_as_many_attempts_as_can_be_counted_says_why_it_is_not_requeued(capsys: Any) -> None:
    job = JobFactory(dead=True, attempts=32_767, max_attempts=32_767)
    out = StringIO()
    with pytest.raises(CommandError):
        call_command("pgqueue_act", "requeue", str(job.pk), f"--seen={job.version}", "--reason=x", stdout=out)
    assert "outcome=refused_state" in out.getvalue()
    assert "run it again as a new job" in out.getvalue()


def test_an_applied_verb_is_told_with_what_was_found_and_left() -> None:
    job = JobFactory()
    told = run("hold", job.id, "--ticket", "OPS-1", "--actor", "ada")
    row = OperatorAction.objects.get()
    assert told == f"outcome=applied audit={row.id} found=pending version=1 now=paused version=2\n"
    assert Job.objects.get().state == State.PAUSED
    assert (row.actor_id, row.actor_name, row.reason, row.ticket) == (None, "ada", "a test", "OPS-1")


@pytest.mark.django_db(transaction=True)
def test_the_shell_gets_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    line = ["manage.py", "pgqueue_act", "hold", str(JobFactory().id), "--seen", "1", "--reason", "a test"]
    execute_from_command_line(line)
    with pytest.raises(SystemExit) as caught:
        execute_from_command_line(line)
    assert caught.value.code == NOT_DONE
    written = capsys.readouterr()
    assert [told.split()[0] for told in written.out.splitlines()] == ["outcome=applied", "outcome=changed"]
    assert "Nothing was done: it changed since you looked." in written.err


def test_the_actor_is_the_system_user_by_default() -> None:
    run("hold", JobFactory().id)
    assert OperatorAction.objects.get().actor_name == getpass.getuser()


def test_a_user_without_a_name_must_say_who_acts(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    monkeypatch.setattr(getpass, "getuser", nameless)
    job = JobFactory()
    assert "--actor" in str(refused("hold", job.id))
    assert run("hold", job.id, "--actor=ada").startswith("outcome=applied")


@pytest.mark.parametrize(
    ("traits", "version", "told"),
    [
        ({}, 2, "outcome=changed"),
        ({"running": True}, 2, "outcome=refused_running"),
        ({"unknown": True}, 3, "outcome=refused_unknown"),
        ({"succeeded": True}, 3, "outcome=refused_state"),
    ],
)
def test_a_refusal_exits_with_its_own_status_and_says_what_was_found(
    traits: dict[str, Any], version: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    job = JobFactory(**traits)
    before = snapshot()
    with pytest.raises(CommandError, match="Nothing was done") as caught:
        call_command("pgqueue_act", "hold", str(job.id), f"--seen={version}", "--reason=a test")
    assert caught.value.returncode == NOT_DONE == 3
    row = OperatorAction.objects.get()
    line, _, why = capsys.readouterr().out.strip().partition(" why=")
    assert line == f"{told} audit={row.id} found={job.state} version={job.version}"
    assert ("this applies to pending, retrying" in why) == (told != "outcome=changed")
    assert snapshot() == before


@pytest.mark.parametrize("id", ["1", "99999999999", "99999999999999999999"])
def test_a_job_that_does_not_exist_is_gone(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused("hold", id).returncode == NOT_DONE
    assert OperatorAction.objects.get().outcome == "gone"


@pytest.mark.parametrize("id", ["abc", "1.5", "", "9" * 5_000])
def test_a_target_that_is_no_number_is_an_error(id: str) -> None:
    error = refused("hold", id)
    assert "does not exist" in str(error)
    assert error.returncode == 1
    assert not OperatorAction.objects.exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["fly", "1", "--seen=1", "--reason=x"], "there is no verb 'fly'"),
        (["hold", "1", "--reason=x"], "--seen"),
        (["hold", "1", "--seen=1"], "needs a reason"),
        (["hold", "1", "--seen=one", "--reason=x"], "invalid int value"),
        (["hold", "1", "--seen=1", "--reason=  "], "needs a reason"),
        (["pause_queue", "mail", "--seen=0", "--reason=x", "--for-seconds=-5"], "greater than zero"),
        (["pause_queue", "mail", "--seen=0", "--reason=x", "--for-seconds=nan"], "greater than zero"),
        (["pause_queue", "mail", "--seen=0", "--reason=x", "--for-seconds=soon"], "no number of seconds"),
    ],
)
def test_bad_input_is_an_error_and_nothing_is_done_or_recorded(options: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told) as caught:
        call_command("pgqueue_act", *options)
    assert caught.value.returncode == 1
    assert not Queue.objects.exists()
    assert not OperatorAction.objects.exists()


def test_the_same_key_is_told_to_be_replayed_and_exits_well() -> None:
    job = JobFactory()
    run("hold", job.id, "--key=k")
    told = run("hold", job.id, "--key=k")
    applied, replayed = OperatorAction.objects.order_by("id")
    assert told.startswith(f"outcome=replayed audit={replayed.id} found=paused version=2 applied_at=")
    assert f"{applied.created_at:%Y-%m-%dT%H:%M:%S}" in told
    assert Job.objects.get().version == 2


def test_a_key_of_another_request_is_an_error() -> None:
    run("hold", JobFactory().id, "--key=k")
    error = refused("hold", JobFactory().id, "--key=k")
    assert (error.returncode, "use a new key" in str(error)) == (1, True)


def test_a_queue_is_paused_for_a_time_and_resumed() -> None:
    JobFactory(queue="mail")
    assert "now=paused version=1" in run("pause_queue", "mail", "--for-seconds=60.5", version=0)
    assert Queue.objects.get().paused_until is not None
    assert "found=paused version=1 now=active version=2" in run("resume_queue", "mail")


def test_a_queue_may_be_called_by_a_number() -> None:
    QueueFactory(name="12")
    assert "outcome=applied" in run("pause_queue", "12")


@pytest.mark.parametrize(
    ("verb", "target", "options"),
    [
        ("pause_queue", "defualt", ()),
        ("resume_queue", "defualt", ()),
        ("set_limit", "queue:defualt", ("--max-running=1",)),
        ("set_limit", "task:tests.testapp.tasks.ad", ("--max-running=1",)),
        ("pause_jobs", "tenant:acmee", ()),
        ("set_limit", "resource:printr", ("--max-running=1",)),
    ],
)
def test_a_name_that_nothing_has_must_be_said_to_be_new(verb: str, target: str, options: tuple[str, ...]) -> None:
    told = str(refused(verb, target, *options, version=0))
    assert "No task and no job has the" in told
    assert told.endswith("Nothing was done. If the name is right, add --new-name.")
    assert (Queue.objects.count(), OperatorAction.objects.count()) == (0, 0)
    assert "Did you mean" in told or target.startswith(("tenant", "resource"))
    if verb != "resume_queue":
        assert "outcome=applied" in run(verb, target, *options, "--new-name", version=0)
        assert "outcome=changed" not in str(refused(verb, target, *options, version=0)), "it is known now"


def test_a_queue_that_a_job_is_moved_to_is_asked_for_too() -> None:
    job = JobFactory()
    assert "No task and no job has the queue 'mial'" in str(refused("move_queue", job.pk, "--queue=mial"))
    assert "outcome=applied" in run("move_queue", job.pk, "--queue=mial", "--new-name")


@pytest.mark.parametrize(
    ("target", "traits"),
    [
        ("queue:letters", {"queue": "letters"}),
        ("queue:letters", {"queue": "letters", "tenanted": True}),
        ("tenant:acme", {"tenant": "acme", "lane": 1}),
        ("resource:printer", {"resource": "printer", "lane": 1}),
    ],
)
def test_what_a_waiting_job_has_is_known(target: str, traits: dict[str, Any]) -> None:
    JobFactory(**traits)
    assert "outcome=applied" in run("set_limit", target, "--max-running=1", version=0)


def test_what_a_task_has_is_known() -> None:
    assert "outcome=applied" in run("set_limit", "task:tests.testapp.tasks.add", "--max-running=1", version=0)


def test_a_change_since_says_what_to_do_next() -> None:
    job = JobFactory()
    run("hold", job.pk)
    told = str(refused("hold", job.pk))
    assert told == (
        "Nothing was done: it changed since you looked. You gave version 1; it is version 2 now, and paused. Look at"
        " it again, and repeat the command with --seen 2."
    )


def test_programs_read_json() -> None:
    job = JobFactory()
    told = json.loads(run("hold", job.pk, "--format=json"))
    assert told == {
        "outcome": "applied",
        "audit": OperatorAction.objects.get().pk,
        "state_found": "pending",
        "version_found": 1,
        "state_after": "paused",
        "version_after": 2,
    }


def test_missing_tables_are_told_in_one_sentence() -> None:
    job = JobFactory()
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE pgqueue_job RENAME TO elsewhere")
    error = refused("hold", job.pk)
    assert (error.returncode, str(error)) == (
        69,
        "The queue's tables are missing in database 'default': run manage.py migrate.",
    )

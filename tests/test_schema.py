"""What the database itself refuses, how the hot table is stored, and that the migrations go both ways."""

import os
import subprocess
import sys
import uuid
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import DatabaseError, IntegrityError, connection, connections, transaction

from pgqueue.operations import Actor, act
from pgqueue.protocol.claiming import Claimant, claim
from pgqueue.protocol.connecting import connect
from pgqueue.protocol.inserting import NewJob, Spent, insert, insert_many, insert_once
from pgqueue.protocol.settling import Ending, EndingKind, settle
from pgqueue.states import Lane, Outcome, State
from tests.factories import (
    ApprovalRequestFactory,
    AttemptFactory,
    BulkActionFactory,
    BulkItemFactory,
    EffectFactory,
    JobFactory,
    LimitFactory,
    MinuteStatFactory,
    OperationKeyFactory,
    OperatorActionFactory,
    ProbeFactory,
    WindowFactory,
    from_now,
)


def refused(constraint, row_factory, **row):
    return pytest.param(constraint, row_factory, row, id=f"{constraint}-{'-'.join(row)}")


REFUSED = [
    refused("pgqueue_job_state_known", JobFactory, state="doing"),
    refused("pgqueue_job_stage_known", JobFactory, stage="called"),
    refused("pgqueue_job_recovery_known", JobFactory, recovery="hope"),
    refused("pgqueue_job_running_leased", JobFactory, running=True, worker_id=None),
    refused("pgqueue_job_running_leased", JobFactory, running=True, lease_until=None),
    refused("pgqueue_job_running_leased", JobFactory, worker_id=-101),
    refused("pgqueue_job_running_leased", JobFactory, lease_until=from_now(60)),
    refused("pgqueue_job_running_leased", JobFactory, succeeded=True, worker_id=-101),
    refused("pgqueue_job_final_dated", JobFactory, succeeded=True, finished_at=None),
    refused("pgqueue_job_final_dated", JobFactory, dead=True, finished_at=None),
    refused("pgqueue_job_final_dated", JobFactory, cancelled=True, finished_at=None),
    refused("pgqueue_job_final_dated", JobFactory, finished_at=from_now(-1)),
    refused("pgqueue_job_paused_shape", JobFactory, paused=True, held_from=None),
    refused("pgqueue_job_paused_shape", JobFactory, paused=True, held_from="running"),
    refused("pgqueue_job_paused_shape", JobFactory, held_from="pending"),
    refused("pgqueue_job_probe_shape", JobFactory, probe_at=from_now(30)),
    refused("pgqueue_job_no_final_unknown", JobFactory, succeeded=True, unknown_effects=1),
    refused("pgqueue_job_no_final_unknown", JobFactory, dead=True, unknown_effects=1),
    refused("pgqueue_job_no_final_unknown", JobFactory, cancelled=True, unknown_effects=1),
    refused("pgqueue_job_no_blind_replay", JobFactory, unknown_effects=1),
    refused("pgqueue_job_no_blind_replay", JobFactory, retrying=True, unknown_effects=1, recovery="manual"),
    refused("pgqueue_job_no_blind_replay", JobFactory, retrying=True, unknown_effects=1, recovery="probe"),
    refused("pgqueue_job_no_blind_replay", JobFactory, retrying=True, unknown_effects=1, recovery="transactional"),
    refused("pgqueue_job_attempts_range", JobFactory, attempts=-1),
    refused("pgqueue_job_attempts_range", JobFactory, attempts=9, max_attempts=8),
    refused("pgqueue_job_attempts_range", JobFactory, lease_losses=-1),
    refused("pgqueue_job_unknown_counted", JobFactory, running=True, unknown_effects=-1),
    refused("pgqueue_job_priority_range", JobFactory, priority=101),
    refused("pgqueue_job_priority_range", JobFactory, priority=-101),
    refused("pgqueue_job_lane_known", JobFactory, lane=4),
    refused("pgqueue_job_lane_shape", JobFactory, lane=Lane.ALONE),
    refused("pgqueue_job_lane_shape", JobFactory, lane=Lane.ISOLATED),
    refused("pgqueue_job_lane_shape", JobFactory, lease_losses=1),
    refused("pgqueue_job_lane_shape", JobFactory, tenant="acme"),
    refused("pgqueue_job_lane_shape", JobFactory, shard_key="customer:7"),
    refused("pgqueue_job_lane_shape", JobFactory, resource="printer"),
    refused("pgqueue_job_blocks_key_shape", JobFactory, blocks_key=True),
    refused("pgqueue_job_until_started_shape", JobFactory, until_started=True),
    refused("pgqueue_limit_range", LimitFactory, max_running=-1),
    refused("pgqueue_limit_range", LimitFactory, weight=0),
    refused("pgqueue_limit_rate_shape", LimitFactory, rate_per_second=1.0),
    refused("pgqueue_limit_rate_shape", LimitFactory, burst=1),
    refused("pgqueue_job_unknown_staged", JobFactory, running=True, unknown_effects=1, stage="confirmed"),
    refused("pgqueue_job_unknown_staged", JobFactory, running=True, stage="outcome_unknown"),
    refused("pgqueue_job_unknown_staged", JobFactory, succeeded=True, stage="outcome_unknown"),
    refused("pgqueue_effect_stage_known", EffectFactory, stage="called"),
    refused("pgqueue_bulk_state_known", BulkActionFactory, state="paused"),
    refused("pgqueue_approval_state_known", ApprovalRequestFactory, state="expired"),
    refused("pgqueue_effect_called_dated", EffectFactory, called_at=None),
    refused("pgqueue_effect_called_dated", EffectFactory, stage="not_called"),
]

TWICE = [
    refused("pgqueue_job_one_per_key", JobFactory, running=True, keyed=True),
    refused("pgqueue_job_unique_until_finished", JobFactory, unique_key="k"),
    refused("pgqueue_job_unique_until_started", JobFactory, unique_key="k", until_started=True),
    refused("pgqueue_window_once", WindowFactory, key="k"),
    refused("pgqueue_operationkey_once", OperationKeyFactory, key="coupon:7"),
    refused("pgqueue_attempt_once", AttemptFactory, job_id=7, fence=5),
    refused("pgqueue_effect_once", EffectFactory, job_id=7, name="sms"),
    refused("pgqueue_probe_once", ProbeFactory, job_id=7, fence=5),
    refused("pgqueue_action_once", OperatorActionFactory, idempotency_key="once"),
    refused("pgqueue_approval_once", ApprovalRequestFactory, idempotency_key="once"),
    refused("pgqueue_bulkitem_once", BulkItemFactory, bulk_id="00000000-0000-0000-0000-000000000007", job_id=7),
    refused("pgqueue_minutestat_once", MinuteStatFactory, minute=datetime(2026, 1, 1, tzinfo=UTC)),
]

NOT_TWICE = [
    pytest.param(JobFactory, {"running": True, "keyed": True}, {"running": True, "keyed": True, "queue": "other"}),
    pytest.param(JobFactory, {"running": True, "keyed": True}, {"retrying": True, "keyed": True}),
    pytest.param(JobFactory, {"running": True, "tenanted": True}, {"running": True, "tenanted": True}),
    pytest.param(JobFactory, {"unique_key": "k"}, {"unique_key": "k", "task": "tests.testapp.tasks.echo"}),
    pytest.param(JobFactory, {"unique_key": "k"}, {"unique_key": "k", "dead": True}),
    pytest.param(JobFactory, {"unique_key": "k", "until_started": True}, {"unique_key": "k"}),
    pytest.param(
        JobFactory,
        {"unique_key": "k", "until_started": True, "running": True},
        {"unique_key": "k", "until_started": True},
    ),
    pytest.param(OperationKeyFactory, {"key": "k"}, {"key": "k", "task": "tests.testapp.tasks.echo"}),
    pytest.param(AttemptFactory, {"job_id": 7, "fence": 5}, {"job_id": 7, "fence": 6}),
    pytest.param(EffectFactory, {"job_id": 7, "name": "sms"}, {"job_id": 7, "name": "mail"}),
    pytest.param(ProbeFactory, {"job_id": 7, "fence": 5}, {"job_id": 7, "fence": 6}),
    pytest.param(
        OperatorActionFactory, {"idempotency_key": "k"}, {"idempotency_key": "k", "outcome": Outcome.REPLAYED}
    ),
    pytest.param(OperatorActionFactory, {"idempotency_key": None}, {"idempotency_key": None}),
]


@contextmanager
def refusal_by(constraint):
    with pytest.raises(IntegrityError) as caught, transaction.atomic():
        yield
    assert caught.value.__cause__.diag.constraint_name == constraint


@pytest.mark.django_db
@pytest.mark.parametrize(("constraint", "row_factory", "row"), REFUSED)
def test_a_constraint_refuses_what_must_not_be(constraint, row_factory, row):
    with refusal_by(constraint):
        row_factory(**row)


@pytest.mark.django_db
@pytest.mark.parametrize(("constraint", "row_factory", "row"), TWICE)
def test_a_unique_index_refuses_the_second(constraint, row_factory, row):
    row_factory(**row)
    with refusal_by(constraint):
        row_factory(**row)


@pytest.mark.django_db
@pytest.mark.case("E14")
@pytest.mark.case("D11")
@pytest.mark.parametrize(("row_factory", "first", "second"), NOT_TWICE)
def test_a_unique_index_is_scoped(row_factory, first, second):
    assert row_factory(**first).pk != row_factory(**second).pk


@pytest.mark.django_db
def test_every_constraint_of_the_schema_is_tested_here():
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT conname FROM pg_constraint WHERE conrelid::regclass::text LIKE 'pgqueue%' AND contype IN ('c', 'u')
            UNION
            SELECT indexrelid::regclass::text FROM pg_index
            WHERE indrelid::regclass::text LIKE 'pgqueue%' AND indisunique AND NOT indisprimary
            UNION
            SELECT 'pgqueue_job_' || rule[1]
            FROM regexp_matches((SELECT prosrc FROM pg_proc WHERE proname = 'pgqueue_check_job'), 'THEN ''(.+?)''', 'g')
                AS rule
            """
        )
        found = {name for (name,) in cursor.fetchall()}
    # It holds all of the rules: a change of one of its columns must not take it away.
    found.remove("pgqueue_job_rules")
    assert found == {param.values[0] for param in REFUSED + TWICE}


@pytest.mark.django_db
@pytest.mark.parametrize(
    "statement", ["UPDATE pgqueue_operatoraction SET reason = 'another'", "DELETE FROM pgqueue_operatoraction"]
)
def test_the_audit_log_refuses_to_be_changed(statement):
    action = OperatorActionFactory()
    with (
        pytest.raises(DatabaseError, match="append-only") as caught,
        transaction.atomic(),
        connection.cursor() as cursor,
    ):
        cursor.execute(statement)
    assert caught.value.__cause__.sqlstate == "42501"
    action.refresh_from_db()
    assert action.reason == "a test"


@pytest.fixture
def application_role(transactional_db):
    """Django's own connection as a role with every privilege on the tables and none on the server."""
    role = f"app_{uuid.uuid4().hex[:12]}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role}")
        cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}")
        cursor.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {role}")
        cursor.execute(f"SET ROLE {role}")
        try:
            yield role
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute(f"DROP OWNED BY {role}")
            cursor.execute(f"DROP ROLE {role}")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "change", ["UPDATE pgqueue_operatoraction SET reason = ''", "DELETE FROM pgqueue_operatoraction"]
)
def test_the_applications_role_may_add_to_the_audit_log_and_change_nothing(application_role, change):
    job = JobFactory()
    action = act("hold", job.pk, version_seen=job.version, actor=Actor(id="7", name="ada"), reason="why")
    assert action.outcome == Outcome.APPLIED
    with connection.cursor() as cursor:
        with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
            cursor.execute(change)
        cursor.execute("SELECT current_user, count(*), min(reason) FROM pgqueue_operatoraction")
        assert cursor.fetchone() == (application_role, 1, "why")


@pytest.mark.django_db
def test_the_audit_log_can_be_truncated():
    """A superuser's act, and what empties the tables between tests."""
    OperatorActionFactory()
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE pgqueue_operatoraction")
        cursor.execute("SELECT count(*) FROM pgqueue_operatoraction")
        assert cursor.fetchone() == (0,)


def test_no_table_has_a_foreign_key():
    """Nothing cascades, deleting a user deletes no record, and nothing locks a parent row."""
    for model in apps.get_app_config("pgqueue").get_models():
        assert not [field.name for field in model._meta.get_fields() if field.is_relation], model


@pytest.mark.django_db
def test_the_hot_table_is_stored_for_many_updates():
    with connection.cursor() as cursor:
        cursor.execute("SELECT unnest(reloptions) FROM pg_class WHERE oid = 'pgqueue_job'::regclass")
        options = dict(option.split("=") for (option,) in cursor.fetchall())
    assert options == {
        "fillfactor": "60",
        "autovacuum_vacuum_scale_factor": "0",
        "autovacuum_vacuum_threshold": "5000",
        "autovacuum_vacuum_cost_delay": "0",
        "autovacuum_analyze_scale_factor": "0.02",
        "autovacuum_analyze_threshold": "10000",
    }


@pytest.mark.django_db
def test_fences_are_never_cached_and_never_come_again():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT data_type::text, cache_size, increment_by, cycle FROM pg_sequences"
            " WHERE sequencename = 'pgqueue_fence'"
        )
        assert cursor.fetchall() == [("bigint", 1, 1, False)]


@pytest.mark.django_db
def test_a_heartbeat_stays_hot():
    """No index holds `lease_until`, so renewing a lease writes no index."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'pgqueue_job'")
        assert not [definition for (definition,) in cursor.fetchall() if "lease_until" in definition]


@pytest.mark.django_db
@pytest.mark.case("I18")
def test_no_function_of_the_queue_runs_with_its_owners_rights():
    with connection.cursor() as cursor:
        cursor.execute("SELECT proname, prosecdef FROM pg_proc WHERE proname LIKE 'pgqueue%'")
        names = ("pgqueue_refuse_change", "pgqueue_check_job", "pgqueue_tokens")
        assert set(cursor.fetchall()) == {(name, False) for name in names}


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["pgqueue_check_job", "pgqueue_tokens"])
def test_whoever_writes_jobs_may_run_the_functions_of_it_whatever_the_default_privileges_say(name):
    with connection.cursor() as cursor:
        cursor.execute("SELECT proacl::text FROM pg_proc WHERE proname = %s", [name])
        assert "{=X/" in cursor.fetchone()[0]


@pytest.mark.case("I13")
@pytest.mark.django_db
def test_the_migrations_create_no_extension_and_no_schema(capsys):
    for name in ("0001", "0002"):
        call_command("sqlmigrate", "pgqueue", name)
    sql = capsys.readouterr().out.upper()
    assert "CREATE TABLE" in sql
    assert "EXTENSION" not in sql
    assert "CREATE SCHEMA" not in sql
    assert "PUBLIC." not in sql
    assert "SCHEMA PUBLIC" not in sql


@pytest.mark.case("I22")
@pytest.mark.django_db
@pytest.mark.parametrize(
    "setting",
    [
        "DEFAULT_AUTO_FIELD = 'django.db.models.AutoField'; LANGUAGE_CODE = 'de'",
        "DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'; TASKS['default']['QUEUES'] = ['a', 'b']",
    ],
)
def test_no_setting_of_a_project_makes_a_migration(tmp_path, setting):
    (tmp_path / "other_settings.py").write_text(f"from tests.settings import *\n{setting}\n")
    made = subprocess.run(
        [sys.executable, "-m", "django", "makemigrations", "--check", "--dry-run", "pgqueue"],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "other_settings",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.getcwd()]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert (made.returncode, made.stdout.strip()) == (0, "No changes detected in app 'pgqueue'"), made.stderr


@pytest.fixture
def elsewhere(transactional_db):
    """An alias whose search_path is a schema of its own, on the test database, as a role that may create no schema."""
    name = f"jobs_{uuid.uuid4().hex[:12]}"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name}")
        cursor.execute(f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    settings = {**connections["default"].settings_dict}
    settings["OPTIONS"] = {
        **settings["OPTIONS"],
        "options": f"-c search_path={name},pg_catalog",
        "assume_role": name,
    }
    connections.settings[name] = settings
    connections[name].connect()
    try:
        yield name
    finally:
        connections[name].close()
        del connections[name]
        del connections.settings[name]
        with connection.cursor() as cursor:
            cursor.execute(f"DROP SCHEMA {name} CASCADE")
            cursor.execute(f"DROP OWNED BY {name}")
            cursor.execute(f"DROP ROLE {name}")


def things_in(schema):
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT relname FROM pg_class
            WHERE relnamespace = %(schema)s::regnamespace AND relname !~ '^(django_migrations|pg_toast)'
            UNION ALL
            SELECT proname FROM pg_proc WHERE pronamespace = %(schema)s::regnamespace
            """,
            {"schema": schema},
        )
        return sorted(name for (name,) in cursor.fetchall())


def migrate(alias, target=()):
    call_command("migrate", "pgqueue", *target, database=alias, verbosity=0, interactive=False)


@pytest.mark.case("I13")
@pytest.mark.django_db(transaction=True)
def test_the_migrations_go_forward_to_zero_and_forward_again(elsewhere):
    migrate(elsewhere)
    first = things_in(elsewhere)
    assert "pgqueue_job" in first
    assert "pgqueue_refuse_change" in first
    migrate(elsewhere, ["zero"])
    assert things_in(elsewhere) == []
    migrate(elsewhere)
    assert things_in(elsewhere) == first


@pytest.mark.case("I12")
@pytest.mark.django_db(transaction=True)
def test_everything_works_in_another_schema_and_nothing_appears_in_public(elsewhere):
    before = things_in("public")
    migrate(elsewhere)
    job = NewJob(
        queue="default",
        task="t",
        args="[1]",
        kwargs=None,
        priority=0,
        lane=Lane.PLAIN,
        max_attempts=8,
        recovery="undeclared",
    )
    first = insert(elsewhere, job)
    many = insert_many(elsewhere, [job, job], args=[None, None], kwargs=[None, None])
    once = insert_once(elsewhere, job, operation_key="k", digest="d")
    again = insert_once(elsewhere, job, operation_key="k", digest="d")
    assert isinstance(again, Spent)
    assert again.id == once.id
    with connect(elsewhere, role="test") as worker:
        leases = claim(worker, Claimant(worker_id=1, tasks=("t",), lease_seconds=60), lane=Lane.PLAIN, limit=10)
        assert [lease.id for lease in leases] == [first.id, *many, once.id]
        endings = [Ending(EndingKind.COMPLETE, lease.id, lease.fence, result="1") for lease in leases]
        written = settle(worker, worker_id=1, endings=endings).written
    assert {entry.state for entry in written.values()} == {State.SUCCEEDED}
    assert things_in("public") == before
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM public.pgqueue_job")
        assert cursor.fetchone() == (0,)


@pytest.mark.django_db
def test_a_missing_table_is_an_error_that_names_it(session):
    """No statement names a schema, so that a wrong search_path finds nothing, rather than another's tables."""
    with session.transaction(force_rollback=True):
        session.execute("SET LOCAL search_path = pg_catalog")
        with pytest.raises(psycopg.errors.UndefinedTable, match="pgqueue_job"):
            claim(session, Claimant(worker_id=1, tasks=("t",), lease_seconds=60), lane=Lane.PLAIN, limit=1)


@pytest.mark.django_db
def test_the_server_writes_out_what_a_bucket_holds():
    """A call for each limit and claim would take longer than the sum."""
    with connection.cursor() as cursor:
        cursor.execute(
            "EXPLAIN VERBOSE SELECT pgqueue_tokens(tokens, rate_per_second, burst, refilled_at) FROM pgqueue_limit"
        )
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "GREATEST" in plan
    assert "pgqueue_tokens" not in plan


@pytest.mark.django_db
def test_whatever_walks_all_models_finds_a_table_for_each(capsys):
    call_command("dumpdata", verbosity=0)
    assert '"model": "pgqueue.overview"' not in capsys.readouterr().out
    for model in apps.get_app_config("pgqueue").get_models():
        if not model._meta.proxy:
            model._base_manager.exists()


def rules_in(schema):
    """Return the constraints, the triggers and the storage of a schema's tables."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT conname || pg_get_constraintdef(oid) FROM pg_constraint
            WHERE connamespace = %(schema)s::regnamespace AND contype = 'c'
            UNION ALL
            SELECT tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
            WHERE relnamespace = %(schema)s::regnamespace
            UNION ALL
            SELECT relname || reloptions::text FROM pg_class
            WHERE relnamespace = %(schema)s::regnamespace AND reloptions IS NOT NULL
            """,
            {"schema": schema},
        )
        return sorted(name for (name,) in cursor.fetchall())


@pytest.fixture
def no_migrations(settings):
    """What `pytest --nomigrations` and `TEST = {"MIGRATE": False}` do: all tables are made from the models."""
    settings.MIGRATION_MODULES = {config.label: None for config in apps.get_app_configs()}


def synchronize(alias):
    call_command("migrate", database=alias, run_syncdb=True, verbosity=0, interactive=False)


@pytest.mark.django_db(transaction=True)
def test_tables_made_without_migrations_are_the_same(elsewhere, settings):
    migrate(elsewhere)
    things, rules = things_in(elsewhere), rules_in(elsewhere)
    migrate(elsewhere, ["zero"])
    settings.MIGRATION_MODULES = {config.label: None for config in apps.get_app_configs()}
    synchronize(elsewhere)
    ours = [name for name in things_in(elsewhere) if name.startswith("pgqueue")]
    assert ours == [name for name in things if name.startswith("pgqueue")]
    assert set(rules) <= set(rules_in(elsewhere))


@pytest.mark.django_db(transaction=True)
def test_without_migrations_a_job_can_be_claimed_and_what_is_there_stays(elsewhere, no_migrations):
    synchronize(elsewhere)
    job = NewJob(
        queue="default",
        task="t",
        args="[1]",
        kwargs=None,
        priority=0,
        lane=Lane.PLAIN,
        max_attempts=8,
        recovery="undeclared",
    )
    insert_many(elsewhere, [job, job], args=[None, None], kwargs=[None, None])
    with connect(elsewhere, role="test") as worker:
        claimant = Claimant(worker_id=1, tasks=("t",), lease_seconds=60)
        (first,) = claim(worker, claimant, lane=Lane.PLAIN, limit=1)
        with connections[elsewhere].cursor() as cursor:
            cursor.execute("ALTER TABLE pgqueue_job DROP CONSTRAINT pgqueue_job_rules")
        synchronize(elsewhere)
        (second,) = claim(worker, claimant, lane=Lane.PLAIN, limit=1)
    assert second.fence > first.fence
    assert "pgqueue_job_rules" in " ".join(rules_in(elsewhere))

"""What Django's models cannot say: the fence, the append-only audit log, and how the hot table is stored."""

from django.db import migrations

FENCE = migrations.RunSQL(
    # CACHE 1: a cached sequence would hand out fences out of order.
    "CREATE SEQUENCE pgqueue_fence AS bigint MINVALUE 1 CACHE 1 NO CYCLE",
    "DROP SEQUENCE pgqueue_fence",
)

APPEND_ONLY = migrations.RunSQL(
    [
        """
        CREATE FUNCTION pgqueue_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'pgqueue_operatoraction is append-only: % is refused', TG_OP
                USING ERRCODE = 'insufficient_privilege',
                      HINT = 'The audit log keeps every action and refusal; write a new row instead.';
        END
        $$
        """,
        """
        CREATE TRIGGER pgqueue_operatoraction_append_only
        BEFORE UPDATE OR DELETE ON pgqueue_operatoraction
        FOR EACH ROW EXECUTE FUNCTION pgqueue_refuse_change()
        """,
    ],
    [
        "DROP TRIGGER pgqueue_operatoraction_append_only ON pgqueue_operatoraction",
        "DROP FUNCTION pgqueue_refuse_change()",
    ],
)

# A job row is written three times in its life. Room on its page saves a lock record and most of the row in
# the WAL; a vacuum by count, not by share, keeps dead versions few however many finished rows there are.
STORAGE = migrations.RunSQL(
    """
    ALTER TABLE pgqueue_job SET (
        fillfactor = 60,
        autovacuum_vacuum_scale_factor = 0,
        autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0,
        autovacuum_analyze_scale_factor = 0.02,
        autovacuum_analyze_threshold = 10000
    )
    """,
    """
    ALTER TABLE pgqueue_job RESET (
        fillfactor,
        autovacuum_vacuum_scale_factor,
        autovacuum_vacuum_threshold,
        autovacuum_vacuum_cost_delay,
        autovacuum_analyze_scale_factor,
        autovacuum_analyze_threshold
    )
    """,
)


class Migration(migrations.Migration):
    """The fence sequence, the audit trigger, storage parameters."""

    dependencies = (("pgqueue", "0001_tables"),)

    operations = (FENCE, APPEND_ONLY, STORAGE)

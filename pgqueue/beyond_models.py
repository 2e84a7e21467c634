"""What Django's models cannot say: the fence, the rules of a job's row, the append-only audit log, storage.

Migration 0002 creates it. Where the migrations of this app are switched off, as in many test databases, the signal
`post_migrate` creates it from here. A later change is a new migration and a change of this text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Part:
    """Something of the database that no model has. `create` may be repeated; `find_missing_parts` knows its name."""

    name: str
    create: tuple[str, ...]
    drop: tuple[str, ...]


FENCE = Part(
    "fence",
    # CACHE 1: a cached sequence would hand out fences out of order.
    create=("CREATE SEQUENCE IF NOT EXISTS pgqueue_fence AS bigint MINVALUE 1 CACHE 1 NO CYCLE",),
    drop=("DROP SEQUENCE IF EXISTS pgqueue_fence",),
)

# What must hold for every row of the job table, checked by the database at every write. One function, since PostgreSQL
# reads the text of CHECK constraints anew for every statement, which for one job takes longer than its row, but a
# function once a session. A rule that is null holds, as in a CHECK. A violation names its rule as the constraint.
RULES = Part(
    "rules",
    create=(
        """
        CREATE OR REPLACE FUNCTION pgqueue_check_job(
            state text, stage text, recovery text, worker_id bigint, lease_until timestamptz, finished_at timestamptz,
            held_from text, probe_at timestamptz, unknown_effects smallint, attempts smallint, max_attempts smallint,
            lease_losses smallint, priority smallint, lane smallint, tenant text, shard_key text, resource text,
            blocks_key boolean, until_started boolean, unique_key text
        ) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
        DECLARE
            broken text := CASE
                WHEN NOT state = ANY (
                    '{pending,retrying,running,paused,unknown,succeeded,dead,cancelled}'::text[]
                ) THEN 'state_known'
                WHEN NOT stage = ANY ('{not_called,outcome_unknown,result_known,confirming,confirmed}'::text[])
                    THEN 'stage_known'
                WHEN NOT recovery = ANY ('{transactional,idempotent,probe,manual,undeclared}'::text[])
                    THEN 'recovery_known'
                WHEN attempts < 0 OR attempts > max_attempts OR lease_losses < 0 THEN 'attempts_range'
                WHEN unknown_effects < 0 THEN 'unknown_counted'
                WHEN priority NOT BETWEEN -100 AND 100 THEN 'priority_range'
                WHEN lane NOT BETWEEN 0 AND 3 THEN 'lane_known'
                WHEN (state = 'running') <> (worker_id IS NOT NULL) OR (worker_id IS NULL) <> (lease_until IS NULL)
                    THEN 'running_leased'
                WHEN (state = ANY ('{succeeded,dead,cancelled}'::text[])) <> (finished_at IS NOT NULL)
                    THEN 'final_dated'
                WHEN (state = 'paused') <> (held_from IS NOT NULL)
                    OR NOT held_from = ANY ('{pending,retrying}'::text[])
                    THEN 'paused_shape'
                WHEN probe_at IS NOT NULL AND state <> 'unknown' THEN 'probe_shape'
                WHEN unknown_effects <> 0 AND state = ANY ('{succeeded,dead,cancelled}'::text[])
                    THEN 'no_final_unknown'
                WHEN (stage = 'outcome_unknown') <> (unknown_effects > 0)
                    AND NOT (stage = 'outcome_unknown' AND state = 'dead')
                    THEN 'unknown_staged'
                WHEN unknown_effects <> 0 AND recovery <> 'idempotent' AND state = ANY ('{pending,retrying}'::text[])
                    THEN 'no_blind_replay'
                WHEN (lane >= 2) <> (lease_losses > 0) OR lane = 0 AND COALESCE(shard_key, tenant, resource) IS NOT NULL
                    THEN 'lane_shape'
                WHEN blocks_key IS NOT NULL AND shard_key IS NULL THEN 'blocks_key_shape'
                WHEN until_started IS NOT NULL AND unique_key IS NULL THEN 'until_started_shape'
            END;
        BEGIN
            IF broken IS NULL THEN
                RETURN true;
            END IF;
            RAISE EXCEPTION 'row of pgqueue_job breaks the rule "%"', broken
                USING ERRCODE = 'check_violation', TABLE = 'pgqueue_job', CONSTRAINT = 'pgqueue_job_' || broken;
        END
        $$
        """,
        # Whatever the database's default privileges say: whoever writes jobs needs it.
        "GRANT EXECUTE ON FUNCTION pgqueue_check_job TO PUBLIC",
        "ALTER TABLE pgqueue_job DROP CONSTRAINT IF EXISTS pgqueue_job_rules",
        """
        ALTER TABLE pgqueue_job ADD CONSTRAINT pgqueue_job_rules CHECK (
            pgqueue_check_job(
                state, stage, recovery, worker_id, lease_until, finished_at, held_from, probe_at, unknown_effects,
                attempts, max_attempts, lease_losses, priority, lane, tenant, shard_key, resource, blocks_key,
                until_started, unique_key
            )
        )
        """,
    ),
    drop=(
        "ALTER TABLE pgqueue_job DROP CONSTRAINT IF EXISTS pgqueue_job_rules",
        "DROP FUNCTION IF EXISTS pgqueue_check_job",
    ),
)

# What a rate's bucket holds now; null without a rate. Written by the server in place of the call. Where the clock has
# gone back by more than a token takes to come, one token is there: the claim that takes it writes the time of today.
# The other readings are a rate that stands still until the clock has caught up, and a whole burst too many.
TOKENS = Part(
    "tokens",
    create=(
        """
        CREATE OR REPLACE FUNCTION pgqueue_tokens(
            tokens float8, rate_per_second float8, burst integer, refilled_at timestamptz
        ) RETURNS float8 LANGUAGE sql STABLE PARALLEL SAFE AS $$
            SELECT LEAST(
                burst,
                CASE
                    WHEN rate_per_second * extract(epoch FROM refilled_at - statement_timestamp()) > 1
                        THEN GREATEST(tokens, 1)
                    ELSE GREATEST(tokens, 0)
                        + rate_per_second * GREATEST(extract(epoch FROM statement_timestamp() - refilled_at), 0)
                END
            )
        $$
        """,
        "GRANT EXECUTE ON FUNCTION pgqueue_tokens TO PUBLIC",
    ),
    drop=("DROP FUNCTION IF EXISTS pgqueue_tokens",),
)

APPEND_ONLY = Part(
    "append_only",
    create=(
        """
        CREATE OR REPLACE FUNCTION pgqueue_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'pgqueue_operatoraction is append-only: % is refused', TG_OP
                USING ERRCODE = 'insufficient_privilege',
                      HINT = 'The audit log keeps every action and refusal; write a new row instead.';
        END
        $$
        """,
        """
        CREATE OR REPLACE TRIGGER pgqueue_operatoraction_append_only
        BEFORE UPDATE OR DELETE ON pgqueue_operatoraction
        FOR EACH ROW EXECUTE FUNCTION pgqueue_refuse_change()
        """,
    ),
    drop=(
        "DROP TRIGGER IF EXISTS pgqueue_operatoraction_append_only ON pgqueue_operatoraction",
        "DROP FUNCTION IF EXISTS pgqueue_refuse_change()",
    ),
)

# A job row is written three times in its life. Room on its page saves a lock record and most of the row in
# the WAL; a vacuum by count, not by share, keeps dead versions few however many finished rows there are.
STORAGE = Part(
    "storage",
    create=(
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
    ),
    drop=(
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
    ),
)

PARTS = (FENCE, RULES, TOKENS, APPEND_ONLY, STORAGE)

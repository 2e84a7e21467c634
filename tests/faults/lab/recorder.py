"""Records every change of state, fence or version of a job, by a trigger, into a table of the test."""

from __future__ import annotations

from typing import Any

import psycopg

from .checker import Move

SET_UP = """
    CREATE TABLE IF NOT EXISTS lab_row (job_id bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS lab_move (
        id bigserial PRIMARY KEY,
        job_id bigint NOT NULL,
        old_state text, new_state text NOT NULL,
        old_fence bigint, new_fence bigint NOT NULL,
        old_version bigint, new_version bigint NOT NULL,
        worker_id bigint,
        at timestamptz NOT NULL,
        txid text NOT NULL
    );
    CREATE OR REPLACE FUNCTION lab_record() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
    BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO public.lab_move
                (job_id, new_state, new_fence, new_version, worker_id, at, txid)
            VALUES (NEW.id, NEW.state, NEW.fence, NEW.version, NEW.worker_id,
                clock_timestamp(), pg_current_xact_id()::text);
        ELSIF (OLD.state, OLD.fence, OLD.version) IS DISTINCT FROM (NEW.state, NEW.fence, NEW.version) THEN
            INSERT INTO public.lab_move
                (job_id, old_state, new_state, old_fence, new_fence, old_version, new_version, worker_id, at, txid)
            VALUES (NEW.id, OLD.state, NEW.state, OLD.fence, NEW.fence, OLD.version, NEW.version,
                COALESCE(NEW.worker_id, OLD.worker_id), clock_timestamp(), pg_current_xact_id()::text);
        END IF;
        RETURN NULL;
    END
    $$;
    CREATE OR REPLACE TRIGGER lab_record AFTER INSERT OR UPDATE OF state, fence, version ON pgqueue_job
        FOR EACH ROW EXECUTE FUNCTION lab_record();
"""
READ = """
    SELECT job_id, old_state, new_state, COALESCE(old_fence, 0), new_fence, COALESCE(old_version, 0), new_version,
        extract(epoch FROM at)::float8
    FROM lab_move ORDER BY id
"""


def set_up(connection: psycopg.Connection[Any]) -> None:
    connection.execute(SET_UP)


def read_moves(connection: psycopg.Connection[Any]) -> list[Move]:
    """Return every recorded move. A row's moves are in order: each was written under the lock of the row."""
    return [Move(*row) for row in connection.execute(READ).fetchall()]

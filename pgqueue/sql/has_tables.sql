-- Whether the job table is there, in the search path. Writes nothing. Returns one row (has_tables boolean).
SELECT to_regclass('pgqueue_job') IS NOT NULL

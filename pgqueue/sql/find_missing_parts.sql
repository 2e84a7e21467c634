-- Which parts of the database that no model has are missing, by their names in `beyond_models`, where the tables are.
-- Looks in this search path. Writes nothing. Returns: a row (name text) for each missing part.
SELECT part.name
FROM (
    VALUES
        ('fence', to_regclass('pgqueue_fence') IS NOT NULL),
        (
            'rules',
            EXISTS (
                SELECT FROM pg_constraint
                WHERE conrelid = to_regclass('pgqueue_job') AND conname = 'pgqueue_job_rules'
            )
        ),
        ('tokens', to_regproc('pgqueue_tokens') IS NOT NULL),
        (
            'append_only',
            EXISTS (
                SELECT FROM pg_trigger
                WHERE tgrelid = to_regclass('pgqueue_operatoraction')
                    AND tgname = 'pgqueue_operatoraction_append_only'
            )
        ),
        (
            'storage',
            EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('pgqueue_job') AND reloptions IS NOT NULL)
        )
) AS part (name, is_there)
WHERE NOT part.is_there AND to_regclass('pgqueue_job') IS NOT NULL

-- Say whether an index of keyword arguments is there that containment can use.
-- Returns: one row, true or false.
SELECT EXISTS (
    SELECT
    FROM pg_index AS index
    JOIN pg_class AS class ON class.oid = index.indexrelid
    JOIN pg_am AS method ON method.oid = class.relam
    JOIN pg_attribute AS attribute
        ON attribute.attrelid = index.indrelid AND attribute.attnum = ANY (index.indkey::smallint[])
    WHERE index.indrelid = to_regclass('pgqueue_jobpayload')
        AND index.indisvalid
        AND method.amname = 'gin'
        AND attribute.attname = 'kwargs'
)

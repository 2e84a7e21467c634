-- Let each statement of this transaction see what was committed before it, whatever the connection's default:
-- what is read after a lock was waited for must be what its last holder left. Sent before anything else.
SET TRANSACTION ISOLATION LEVEL READ COMMITTED

-- Commit. After a statement that failed the server passes over it, and all is rolled back.
COMMIT

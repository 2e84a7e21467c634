-- Begin a transaction in which each statement sees what was committed before it, whatever the database's default.
BEGIN ISOLATION LEVEL READ COMMITTED

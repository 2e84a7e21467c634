"""A database backend that chooses a tenant in each cursor, as packages for row-level security and schemas do."""

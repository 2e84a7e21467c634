-- Forget whatever a task left in a session that will be used again: search_path, role, time zone, temporary
-- tables, locks. Django's own session settings are set anew after it.
DISCARD ALL

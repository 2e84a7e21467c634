"""The worker process: one dispatcher that settles and claims, threads that run, a heartbeat, a listener."""

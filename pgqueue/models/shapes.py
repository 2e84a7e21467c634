"""What must hold for every row of the job table, checked by the database at every write.

In plain SQL, and each as short as it can be: PostgreSQL reads the text of all of them anew for every statement, which
for the INSERT of one job takes longer than the row.
"""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import BooleanField, CheckConstraint
from django.db.models.expressions import RawSQL

from ..states import FINAL, WAITING, Recovery, Stage, State


def _check(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(name=f"pgqueue_job_{name}", condition=RawSQL(condition, (), BooleanField()))


def _any(words: Iterable[str]) -> str:
    """Return one array constant; a list of words is stored as long as the words are many."""
    return f"ANY ('{{{','.join(words)}}}'::text[])"


CHECKS = (
    _check("state_known", f"state = {_any(State)}"),
    _check("stage_known", f"stage = {_any(Stage)}"),
    _check("recovery_known", f"recovery = {_any(Recovery)}"),
    _check(
        "running_leased",
        "(state = 'running') = (worker_id IS NOT NULL) AND (worker_id IS NULL) = (lease_until IS NULL)",
    ),
    _check("final_dated", f"(state = {_any(FINAL)}) = (finished_at IS NOT NULL)"),
    _check(
        "paused_shape",
        f"(state = 'paused') = (held_from IS NOT NULL) AND (held_from IS NULL OR held_from = {_any(WAITING)})",
    ),
    _check("probe_shape", "probe_at IS NULL OR state = 'unknown'"),
    _check("no_final_unknown", f"unknown_effects = 0 OR NOT state = {_any(FINAL)}"),
    _check(
        "unknown_staged",
        "(stage = 'outcome_unknown') = (unknown_effects > 0) OR stage = 'outcome_unknown' AND state = 'dead'",
    ),
    _check(
        "no_blind_replay",
        f"unknown_effects = 0 OR recovery = 'idempotent' OR NOT state = {_any(WAITING)}",
    ),
    _check("attempts_range", "attempts >= 0 AND attempts <= max_attempts AND lease_losses >= 0"),
    _check("unknown_counted", "unknown_effects >= 0"),
    _check("priority_range", "priority >= -100 AND priority <= 100"),
    _check("lane_known", "lane >= 0 AND lane <= 2"),
    _check(
        "lane_shape",
        "(lane = 2) = (lease_losses > 0) AND (lane <> 0 OR COALESCE(shard_key, tenant, resource) IS NULL)",
    ),
    _check("blocks_key_shape", "blocks_key IS NULL OR shard_key IS NOT NULL"),
    _check("until_started_shape", "until_started IS NULL OR unique_key IS NOT NULL"),
)

"""Every guard of every statement, how to cut it out, and the scenario that notices."""

from __future__ import annotations

from pgqueue.states import Lane, Recovery, Stage, State
from tests.factories import ApprovalRequestFactory, JobFactory, LimitFactory, QueueFactory, WorkerFactory, from_now
from tests.mutants import scenarios as s
from tests.mutants.mutating import Mutant

WAITS = (("SKIP LOCKED", ""),)
BOUND_TASK = "tests.testapp.tasks.echo"
NOT_PAUSED = "WHERE paused.name = live.queue"
TERMINAL_UNKNOWN = {"unknown_effects": 1, "recovery": Recovery.IDEMPOTENT}
BUSY = "busy.state = 'running' AND busy.queue = job.queue AND busy.shard_key = job.shard_key"
KEY_LOCK = "pg_try_advisory_xact_lock(hashtextextended(chosen.queue || chr(31) || chosen.shard_key, 0))"
LANE_OF = {"pick_laned": Lane.LANED, "pick_bound": Lane.ALONE}
RECOVERED = "recovered.state IN ('pending', 'retrying') AND recovered.lane IN (2, 3)"


def cut(text, instead=""):
    return ((text, instead),)


CLAIM = [
    Mutant(
        "claim",
        "the row is still waiting",
        cut(
            "WHERE job.state IN ('pending', 'retrying') AND job.lane = 0 AND job.queue = level",
            "WHERE job.lane = 0 AND job.queue = level",
        ),
        s.left_by_the_claim(unknown=True, lease_losses=0, lane=Lane.PLAIN, unknown_effects=0),
    ),
    Mutant(
        "claim",
        "the row is still waiting",
        cut("AND coalesce(job.state IN ('pending', 'retrying'), FALSE)"),
        s.left_when_it_changed_before_the_lock("state = 'unknown'"),
    ),
    Mutant(
        "claim",
        "of this lane",
        cut("AND job.lane = 0 AND job.queue = level", "AND job.queue = level"),
        s.left_by_the_claim(tenanted=True),
    ),
    Mutant(
        "claim",
        "of this lane",
        cut("AND job.lane = 0 AND job.queue = merged", "AND job.queue = merged"),
        s.left_when_it_changed_before_the_lock("lane = 1, tenant = 'acme'"),
    ),
    Mutant("claim", "and queue", cut("AND job.queue = level.queues[1]"), s.left_by_the_claim(queue="excluded")),
    Mutant(
        "claim",
        "and queue",
        cut("AND job.queue = of_group.queue"),
        s.left_by_the_claim_of_several(queue="excluded"),
    ),
    Mutant(
        "claim",
        "and queue",
        cut("AND job.queue = merged.queue"),
        s.left_when_it_changed_before_the_lock("queue = 'excluded'"),
    ),
    Mutant("claim", "due", cut("AND job.run_at <= statement_timestamp()"), s.left_by_the_claim(future=True)),
    Mutant("claim", "due", cut("AND job.run_at <= statement_timestamp()"), s.left_by_the_claim_of_several(future=True)),
    Mutant(
        "claim",
        "due",
        cut("merged.queue AND job.run_at <= statement_timestamp()", "merged.queue"),
        s.left_when_it_changed_before_the_lock("run_at = now() + '1 day'"),
    ),
    Mutant(
        "claim",
        "of a task this worker knows",
        cut("AND live.task = ANY (%(tasks)s::text[])"),
        s.left_by_the_claim(task="tests.testapp.tasks.gone"),
    ),
    *(Mutant("claim", "nobody holds its lock", WAITS, scenario) for scenario in s.CLAIMS_PASS_OVER_A_LOCK),
    Mutant("claim", "its queue is not paused", cut(NOT_PAUSED, "WHERE false"), s.left_by_the_claim(queue="frozen")),
    Mutant(
        "claim",
        "neither its queue",
        cut("'queue:' || live.queue, "),
        s.left_by_the_claim(queue="bound"),
    ),
    Mutant(
        "claim",
        "nor its task is bound",
        cut(", 'task:' || live.task"),
        s.left_by_the_claim(task=BOUND_TASK),
    ),
    *(
        Mutant("claim", "", change, s.claim_of_several_tasks_goes_by_age)
        for change in (
            cut("AND ahead.cuts = 0"),
            cut("WHERE merged.is_cut AND", "WHERE merged.id = 0 AND"),
        )
    ),
    *(
        Mutant("claim", "", change, s.claim_goes_on_behind_its_marks)
        for change in (
            cut("AND (job.run_at, job.id) > (level.mark_ats[1], level.mark_ids[1])"),
            cut("AND (job.run_at, job.id) > (of_group.mark_at, of_group.mark_id)"),
            cut("AND (%(queues)s::text[] IS NULL OR live.queue = ANY (%(queues)s::text[]))"),
        )
    ),
    Mutant(
        "claim_behind",
        "the row is still waiting",
        cut("job.state IN ('pending', 'retrying') AND job.lane = 0", "job.lane = 0"),
        s.left_behind_the_mark(unknown=True, lease_losses=0, lane=Lane.PLAIN, unknown_effects=0),
    ),
    Mutant(
        "claim_behind",
        "the row is still waiting",
        cut("job.state IN ('pending', 'retrying') AND", "job.state IS NOT NULL AND"),
        s.left_when_it_changed_before_the_lock_behind_a_mark("state = 'unknown'"),
    ),
    Mutant("claim_behind", "of this lane", cut("AND job.lane = 0"), s.left_behind_the_mark(tenanted=True)),
    Mutant("claim_behind", "queue", cut("AND job.queue = %(mark_queue)s::text"), s.left_behind_the_mark(queue="other")),
    Mutant(
        "claim_behind",
        "priority",
        cut("AND job.priority * -1 = %(mark_priority)s::smallint * -1"),
        s.left_behind_the_mark(priority=1),
    ),
    Mutant(
        "claim_behind",
        "and task",
        cut("AND job.task = %(mark_task)s::text"),
        s.left_behind_the_mark(task=BOUND_TASK),
    ),
    Mutant(
        "claim_behind",
        "due",
        cut("AND job.run_at <= statement_timestamp()"),
        s.left_behind_the_mark(run_at=from_now(86_400)),
    ),
    Mutant(
        "claim_behind",
        "and behind the mark",
        cut("AND (job.run_at, job.id) > (to_timestamp(%(mark_epoch)s::float8), %(mark_id)s::bigint)"),
        s.left_behind_the_mark(run_at=from_now(-70)),
    ),
    Mutant(
        "claim_behind",
        "this worker serves the queue",
        cut("AND (%(queues)s::text[] IS NULL OR %(mark_queue)s::text = ANY (%(queues)s::text[]))"),
        s.a_whole_group_is_left(queue="foreign"),
    ),
    Mutant(
        "claim_behind",
        "this worker serves the queue",
        cut("AND %(mark_queue)s::text <> ALL (%(excluded)s::text[])"),
        s.a_whole_group_is_left(queue="excluded"),
    ),
    Mutant(
        "claim_behind",
        "and knows the task",
        cut("AND %(mark_task)s::text = ANY (%(tasks)s::text[])"),
        s.a_whole_group_is_left(task="tests.testapp.tasks.gone"),
    ),
    Mutant("claim_behind", "nobody holds its lock", WAITS, s.claim_behind_a_mark_passes_over_a_lock),
    Mutant(
        "claim_behind",
        "its queue is not paused",
        cut("WHERE paused.name = %(mark_queue)s::text", "WHERE false"),
        s.a_whole_group_is_left(queue="frozen"),
    ),
    Mutant(
        "claim_behind",
        "neither its queue",
        cut("'queue:' || %(mark_queue)s::text, "),
        s.a_whole_group_is_left(queue="bound"),
    ),
    Mutant(
        "claim_behind",
        "nor its task is bound",
        cut(", 'task:' || %(mark_task)s::text"),
        s.a_whole_group_is_left(task=BOUND_TASK),
    ),
    Mutant(
        "claim_picked",
        "the row is still waiting",
        cut("AND coalesce(job.state IN ('pending', 'retrying'), FALSE)"),
        s.left_by_the_second_half(unknown=True, unknown_effects=0),
    ),
    Mutant(
        "claim_picked",
        "and due",
        cut("AND job.run_at <= statement_timestamp()"),
        s.left_by_the_second_half(tenanted=True, future=True),
    ),
    Mutant("claim_picked", "nobody holds its lock", WAITS, s.second_half_passes_over_a_lock),
    Mutant("claim_picked", "no job of its shard key is running", cut(BUSY, "false"), s.second_half_leaves_a_busy_key),
    Mutant(
        "claim_picked",
        "all read under this statement's own snapshot, taken after the locks were held",
        cut(BUSY, "false"),
        s.second_half_sees_a_job_started_after_the_pick,
    ),
    Mutant(
        "claim_picked",
        "no older one waits that has lost its lease",
        cut(RECOVERED, "false"),
        s.recovered_job_goes_first_in_its_key,
    ),
    Mutant(
        "claim_picked",
        "its queue is not paused",
        cut("WHERE paused.name = job.queue", "WHERE false"),
        s.left_by_the_second_half(tenanted=True, queue="frozen"),
    ),
    Mutant(
        "claim_picked",
        "no older one blocks the key",
        cut("WHERE older.blocks_key", "WHERE false"),
        s.second_half_leaves_a_blocked_key,
    ),
    Mutant(
        "claim_picked",
        "each of its limits is locked by the first half",
        cut("NOT bounds.is_locked OR"),
        s.second_half_needs_the_lock_of_a_limit,
    ),
    Mutant(
        "claim_picked",
        "no limit is exceeded",
        cut("bound.max_running - COALESCE", "1000000 - COALESCE"),
        s.second_half_counts_what_runs,
    ),
    Mutant(
        "claim_picked",
        "no rate",
        cut("floor(", "1000000 + floor("),
        s.second_half_counts_the_tokens,
    ),
    Mutant(
        "claim_picked",
        "none of them is paused",
        cut("WHEN bound.paused_at IS NOT NULL", "WHEN false"),
        s.second_half_sees_a_pause,
    ),
    Mutant(
        "claim_picked",
        "",
        cut("WHERE job.state = 'running' AND named.id", "WHERE job.state = 'running' AND job.id < 0 AND named.id"),
        s.second_half_counts_what_was_started_after_the_pick,
    ),
    *(
        mutant
        for pick in ("pick_laned", "pick_bound")
        for mutant in (
            Mutant(
                pick,
                "at most one row per (queue, shard_key)",
                cut('COALESCE(due.shard_key, due.id::text) COLLATE "C"', "due.id"),
                s.pick_takes_one_of_a_key(LANE_OF[pick]),
            ),
            Mutant(
                pick,
                "none while a job of the key runs",
                cut("WHERE busy.state = 'running'", "WHERE false"),
                s.pick_looks_past_a_busy_key(LANE_OF[pick]),
            ),
            Mutant(
                pick,
                "and only with the locks of its limits",
                cut("named.id NOT IN (SELECT locked.id FROM locked)", "false"),
                s.pick_needs_the_lock_of_a_limit(LANE_OF[pick]),
            ),
            Mutant(
                pick,
                "and the key's transaction lock",
                cut(KEY_LOCK, "true"),
                s.pick_needs_the_lock_of_the_key(LANE_OF[pick]),
            ),
            Mutant(
                pick,
                "which are tried and never waited for",
                cut(KEY_LOCK, KEY_LOCK.replace("pg_try_advisory", "pg_advisory") + "::text = ''"),
                s.pick_needs_the_lock_of_the_key(LANE_OF[pick]),
            ),
            Mutant(pick, "", WAITS, s.pick_needs_the_lock_of_a_limit(LANE_OF[pick])),
        )
    ),
    Mutant(
        "pick_laned",
        "or an older one waits that has lost its lease",
        cut("job.lane IN (2, 3) AND job.shard_key IS NOT NULL", "false"),
        s.pick_looks_past_a_key_with_a_recovered_job,
    ),
]

RENEW = [
    Mutant("renew", "id", cut("WHERE job.id = lease.id AND", "WHERE"), s.only_the_asked_job_is_renewed),
    Mutant("renew", "fence", cut("AND job.fence = lease.fence"), s.not_renewed_under_another_fence),
    Mutant("renew", "worker_id", cut("AND job.worker_id = %(worker_id)s::bigint"), s.not_renewed(worker_id=202)),
    Mutant(
        "renew",
        "the lease has not expired",
        cut("AND job.lease_until > statement_timestamp()"),
        s.not_renewed(lease_until=from_now(-1)),
    ),
    Mutant("renew", "nobody holds the row's lock", WAITS, s.renewal_passes_over_a_lock),
]

ENDINGS = [
    mutant
    for kind in s.KINDS
    for mutant in (
        Mutant(kind, "id", cut("WHERE job.id = ending.id AND", "WHERE"), s.only_the_ended_job_is_settled(kind)),
        Mutant(kind, "fence", cut("AND job.fence = ending.fence"), s.not_settled_under_another_fence(kind)),
        Mutant(
            kind,
            "worker_id",
            cut("AND job.worker_id = %(worker_id)s::bigint"),
            s.not_settled_by_another_worker(kind),
        ),
        Mutant(kind, "", WAITS, s.ending_passes_over_a_lock(kind)),
        Mutant(
            kind,
            "no effect with an unknown outcome",
            cut("AND job.unknown_effects = 0"),
            s.unknown_is_not_settled_as_if_known(kind),
            {"find_held": cut("AS expired, job.unknown_effects", "AS expired, 0 AS unknown_effects")},
        ),
    )
]

COMPLETIONS = [
    Mutant(
        "complete_first",
        "id",
        cut("WHERE mine.id = %(id)s::bigint AND", "WHERE"),
        s.only_the_ended_job_is_completed_alone,
    ),
    Mutant(
        "complete_first",
        "fence",
        cut("AND mine.fence = %(fence)s::bigint"),
        s.not_completed_alone_under_another_fence,
    ),
    Mutant(
        "complete_first",
        "worker_id",
        cut("AND mine.worker_id = %(worker_id)s::bigint"),
        s.not_completed_alone(worker_id=202),
    ),
    Mutant(
        "complete_first",
        "no effect with an unknown outcome",
        cut("AND mine.unknown_effects = 0"),
        s.not_completed_alone(unknown_effects=1),
    ),
    Mutant("complete_first", "the first attempt", cut("AND mine.attempts = 0"), s.not_completed_alone(attempts=1)),
    Mutant(
        "complete_first",
        "no lease lost",
        cut("AND mine.lease_losses = 0"),
        s.not_completed_alone(lease_losses=1, lane=Lane.ALONE),
    ),
    Mutant("complete_first", "", WAITS, s.ending_passes_over_a_lock_alone),
]

SEEN = (
    ("job.stage, job.unknown_effects", "seen.stage, seen.unknown_effects"),
    ("FROM pgqueue_job AS job", "FROM pgqueue_job AS job JOIN pgqueue_job AS seen ON seen.id = job.id"),
)
"""The wrong way to lock: decide from a second look at the row, which one snapshot answers from before the lock."""

TAKEOVER = [
    Mutant("take_over", "id", cut("WHERE job.id = verdict.id AND", "WHERE"), s.only_the_judged_job_is_taken),
    Mutant("take_over", "fence", cut("AND job.fence = verdict.fence"), s.not_taken({"expired": True}, fence=0)),
    Mutant(
        "take_over",
        "and stage as locked",
        cut("AND job.stage = verdict.stage"),
        s.not_taken({"expired": True}, stage="confirmed"),
    ),
    Mutant(
        "take_over",
        "the lease is expired",
        cut("AND job.lease_until <= statement_timestamp()"),
        s.not_taken({"running": True}),
    ),
    Mutant(
        "lock_expired",
        "still running",
        cut("AND coalesce(job.state = 'running', FALSE) AND job.lease_until <= statement_timestamp()"),
        s.not_locked_for_a_takeover(succeeded=True),
    ),
    Mutant(
        "lock_expired",
        "and still expired when the lock is held",
        cut("AND job.lease_until <= statement_timestamp()"),
        s.not_locked_for_a_takeover(running=True),
    ),
    Mutant(
        "find_parents",
        "the parent of this worker",
        cut("WHERE parent.id = child.parent_id AND", "WHERE"),
        s.lost_with_its_parent(silent=True),
    ),
    Mutant(
        "find_parents", "it has not stopped", cut("AND parent.stopped_at IS NULL"), s.lost_with_its_parent(stopped=True)
    ),
    Mutant(
        "find_parents",
        "its last heartbeat is less than half a lease ago",
        cut("AND parent.heartbeat_at > statement_timestamp() - make_interval(secs => parent.lease_seconds / 2)"),
        s.lost_with_its_parent(silent=True),
    ),
    Mutant("find_parents", "", cut("AND child.parent_id IS NOT NULL"), s.lost_without_a_parent),
    Mutant("lock_expired", "nobody else holds it", WAITS, s.takeover_passes_over_a_lock),
    Mutant(
        "lock_expired",
        "not one of `kept`",
        cut("AND job.id = ANY (%(kept)s::bigint[])"),
        s.takeover_leaves_out_what_the_caller_runs,
    ),
    Mutant(
        "lock_expired",
        "which the caller, as `worker_id`, runs itself",
        cut("job.worker_id = %(worker_id)s::bigint AND"),
        s.takeover_takes_what_another_worker_lost,
    ),
    Mutant(
        "lock_expired",
        "",
        (*SEEN, ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE OF job")),
        s.takeover_decides_by_what_the_owner_committed,
        {"take_over": cut("AND job.stage = verdict.stage")},
    ),
]

BLOCKERS = [
    Mutant(
        "find_blockers",
        "the lease has expired",
        cut(
            "AND job.lease_until <= statement_timestamp() - make_interval(secs => %(expired_seconds)s::float8)",
            "AND %(expired_seconds)s::float8 = 0",
        ),
        s.session_is_left("valid_lease", lease_seconds=60),
    ),
    Mutant(
        "find_blockers",
        "named after this job and fence",
        cut("session.application_name = 'pgqueue job=' || stuck.id || ' fence=' || stuck.fence AND"),
        s.session_is_left("other_fence", of=1),
    ),
    Mutant(
        "find_blockers",
        "idle in its transaction",
        cut("AND session.state = 'idle in transaction'"),
        s.session_is_left("at_work", works_seconds=2.0),
    ),
    Mutant(
        "find_blockers",
        "for a second",
        cut("AND session.state_change <= statement_timestamp() - interval '1 second'"),
        s.session_is_left("commit_on_its_way", sleeps=0),
    ),
    Mutant(
        "find_blockers",
        "this role may end it",
        cut(
            "AND (current_setting('is_superuser')::bool OR NOT role.rolsuper)"
            " AND (pg_has_role(session.usesysid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))"
        ),
        s.session_is_left("modest_role", role="pgqueue_modest"),
    ),
]

EFFECTS = [
    Mutant("lock_owned", "id", cut("WHERE job.id = %(id)s::bigint AND", "WHERE"), s.not_opened("id", id=0)),
    Mutant("lock_owned", "fence", cut("AND job.fence = %(fence)s::bigint"), s.not_opened("fence", fence=0)),
    Mutant(
        "lock_owned",
        "worker_id",
        cut("AND job.worker_id = %(worker_id)s::bigint"),
        s.not_opened("worker_id", worker_id=-202),
    ),
    Mutant(
        "lock_owned",
        "where asked for, the lease has not expired",
        cut("AND (NOT %(unexpired)s::bool OR job.lease_until > statement_timestamp())"),
        s.not_opened("expired", lease_until=-1),
    ),
    Mutant("lock_owned", "", cut("FOR NO KEY UPDATE"), s.effect_is_opened_once_by_two_calls_of_one_run),
    Mutant(
        "keep_evidence",
        "id",
        cut("WHERE attempt.job_id = %(id)s::bigint AND", "WHERE"),
        s.evidence_is_not_kept("id", id=0),
    ),
    Mutant(
        "keep_evidence", "fence", cut("AND attempt.fence = %(fence)s::bigint"), s.evidence_is_not_kept("f", fence=0)
    ),
    Mutant(
        "keep_evidence",
        "worker_id of the attempt",
        cut("AND attempt.worker_id = %(worker_id)s::bigint"),
        s.evidence_is_not_kept("worker_id", worker_id=-202),
    ),
    Mutant(
        "lease_probe",
        "still unknown",
        cut("WHERE job.state = 'unknown' AND job.probe_at", "WHERE job.probe_at")
        + cut("job.probe_at <= statement_timestamp()", "COALESCE(job.probe_at, job.run_at) <= statement_timestamp()"),
        s.not_asked_about(state="retrying", probe_at=None, recovery=Recovery.IDEMPOTENT),
    ),
    Mutant(
        "lease_probe",
        "due",
        cut("AND job.probe_at <= statement_timestamp()"),
        s.not_asked_about(probe_at=from_now(60)),
    ),
    Mutant(
        "lease_probe",
        "of a task this worker can ask for",
        cut("AND job.task = ANY (%(tasks)s::text[])", "AND %(tasks)s::text[] IS NOT NULL"),
        s.not_asked_about(task="tests.testapp.tasks.gone"),
    ),
    Mutant("lease_probe", "nobody holds its lock", WAITS, s.question_passes_over_a_lock),
    Mutant("lock_probed", "id", cut("WHERE job.id = %(id)s::bigint AND", "WHERE"), s.answer_does_not_count("id", id=0)),
    Mutant(
        "lock_probed",
        "fence",
        cut("AND job.fence = %(fence)s::bigint"),
        s.answer_does_not_count("fence", fence=0),
    ),
    Mutant(
        "lock_probed",
        "state",
        cut("AND job.state = 'unknown'"),
        s.answer_does_not_count("state", probing=False),
    ),
    Mutant(
        "answer_probe",
        "id",
        cut("WHERE probe.job_id = %(id)s::bigint AND", "WHERE"),
        s.answer_is_not_kept("id", id=0),
    ),
    Mutant(
        "answer_probe",
        "fence",
        cut("AND probe.fence = %(fence)s::bigint"),
        s.answer_is_not_kept("fence", fence=0),
    ),
    Mutant(
        "answer_probe",
        "not answered before",
        cut("AND probe.answered_at IS NULL"),
        s.answer_is_not_kept("answered", answered=True),
    ),
    Mutant(
        "reconcile",
        "fence as locked",
        cut("AND job.fence = %(fence)s::bigint"),
        s.refused("reconcile", JobFactory, {"unknown": True}, fence=0),
    ),
    Mutant(
        "reconcile",
        "the effect's outcome is unknown",
        cut("AND effect.stage = 'outcome_unknown'"),
        s.settled_effect_is_not_settled_again,
    ),
    Mutant(
        "reconcile",
        "past its call's deadline where it is said not to have happened",
        cut("AND (%(effect_stage)s::text <> 'not_called' OR effect.deadline_at <= statement_timestamp())"),
        s.verdict_refused("too_early", past=False, stage=Stage.NOT_CALLED),
    ),
    *(
        Mutant(
            "reconcile",
            "nothing else is unknown where the job ends for what happened",
            cut("AND (%(target)s::text NOT IN ('succeeded', 'dead') OR %(unknown_effects)s::smallint = 0)"),
            s.verdict_refused(f"not_the_last_{target}", effects=("sms", "mail"), target=target),
        )
        for target in (State.SUCCEEDED, State.DEAD)
    ),
    Mutant(
        "ask_again",
        "its task can be asked",
        cut("AND job.recovery = 'probe'"),
        s.refused("ask_again", JobFactory, {"unknown": True}),
    ),
    Mutant(
        "ask_again",
        "an effect's outcome is unknown",
        cut("AND job.unknown_effects > 0"),
        s.refused("ask_again", JobFactory, {"probing": True, "unknown_effects": 0}),
    ),
    Mutant(
        "keep_evidence",
        "not purged",
        cut("AND (attempt.evidence IS NULL OR jsonb_typeof(attempt.evidence) = 'array')"),
        s.evidence_is_not_kept("purged", evidence="purged"),
    ),
    *(
        Mutant(
            verb,
            guard,
            cut("AND job.purged_at IS NULL"),
            s.refused(verb, JobFactory, {"dead": True, "purged_at": from_now(-5)}),
        )
        for verb, guard in (("requeue", "not purged"), ("clone", "not purged"), ("purge", "not purged before"))
    ),
    Mutant(
        "requeue",
        "not compensated",
        cut("AND job.compensated_at IS NULL"),
        s.refused("requeue", JobFactory, {"dead": True, "compensated_at": from_now(-5)}),
    ),
    Mutant(
        "clone",
        "no effect is unknown or was given up as unknown",
        cut("AND job.stage <> 'outcome_unknown'"),
        s.refused("clone", JobFactory, {"dead": True, "stage": Stage.OUTCOME_UNKNOWN}),
    ),
    Mutant(
        "requeue",
        "no effect was given up as unknown",
        cut("AND job.stage <> 'outcome_unknown'"),
        s.refused("requeue", JobFactory, {"dead": True, "stage": Stage.OUTCOME_UNKNOWN}),
    ),
]

JOB_SHAPES = {
    "reconcile": {"unknown": True},
    "ask_again": {"probing": True},
    "assign": {"unknown": True},
    "clone": {"dead": True},
    "purge": {"dead": True},
    "hold": {},
    "unhold": {"paused": True},
    "cancel": {},
    "give_up": {},
    "requeue": {"dead": True},
    "skip_head": {"strict": True},
    "reschedule": {},
    "reprioritise": {},
    "move_queue": {},
    "ask_to_stop": {"running": True},
    "break_lease": {"running": True},
}
QUEUE_SHAPES = {"pause_queue": {}, "resume_queue": {"paused": True}}
OTHER_STATES = {
    "reconcile": {"replaying": True},
    "ask_again": {"running": True, "unknown_effects": 1, "recovery": Recovery.PROBE},
    "assign": {"running": True},
    "clone": {"unknown": True, "unknown_effects": 0},
    "purge": {"retrying": True},
    "hold": {"unknown": True, "unknown_effects": 0},
    "unhold": {"retrying": True},
    "cancel": {"unknown": True, "unknown_effects": 0},
    "give_up": {"cancelled": True},
    "requeue": {"retrying": True},
    "skip_head": {"strict": True, "running": True},
    "reschedule": {"running": True},
    "reprioritise": {"paused": True},
    "move_queue": {"running": True},
    "ask_to_stop": {},
    "break_lease": {"unknown": True, "recovery": Recovery.IDEMPOTENT},
}
STATE_GUARDS = {
    "reconcile": cut("AND (SELECT job.state) = 'unknown'"),
    "ask_again": cut("AND (SELECT job.state) = 'unknown'"),
    "assign": cut("AND (SELECT job.state) = 'unknown'"),
    "clone": cut("AND (SELECT job.state) <> 'unknown'"),
    "purge": cut("AND job.state IN ('succeeded', 'dead', 'cancelled')"),
    "hold": (
        ("AND (SELECT job.state) IN ('pending', 'retrying')", ""),
        ("held_from = job.state", "held_from = 'pending'"),
    ),
    "unhold": (
        ("AND (SELECT job.state) = 'paused'", ""),
        ("state = job.held_from", "state = COALESCE(job.held_from, 'pending')"),
    ),
    "cancel": cut("AND (SELECT job.state) IN ('pending', 'retrying', 'paused')"),
    "give_up": cut("AND (SELECT job.state) IN ('pending', 'retrying', 'unknown')"),
    "requeue": cut("AND (SELECT job.state) IN ('dead', 'cancelled')"),
    "skip_head": cut("AND (SELECT job.state) IN ('pending', 'retrying', 'paused', 'unknown')"),
    **{
        verb: cut("AND (SELECT job.state) IN ('pending', 'retrying')")
        for verb in ("reschedule", "reprioritise", "move_queue")
    },
    "ask_to_stop": cut("AND (SELECT job.state) = 'running'"),
    "break_lease": cut("AND (SELECT job.state) = 'running'"),
}


def of(verb):
    """Return where a statement finds the id and the version that it is given."""
    return ("asked.id", "asked.version_seen") if verb in s.MANY else ("%(id)s::bigint", "%(version_seen)s::bigint")


JOB_VERBS = [
    mutant
    for verb, shape in JOB_SHAPES.items()
    for mutant in (
        Mutant(verb, "id", cut(f"job.id = {of(verb)[0]} AND"), s.only_the_target_changes(verb, JobFactory, shape)),
        Mutant(
            verb,
            "version seen",
            cut(f"AND job.version = {of(verb)[1]}"),
            s.refused(verb, JobFactory, shape, version_seen=99),
        ),
        Mutant(verb, "state", STATE_GUARDS[verb], s.refused(verb, JobFactory, OTHER_STATES[verb])),
        Mutant(
            "lock_job",
            f"{verb}: under the row's lock",
            cut("FOR NO KEY UPDATE"),
            s.verb_decides_under_the_lock(verb, JobFactory, shape, "pgqueue_job"),
        ),
    )
]

QUEUE_VERBS = [
    mutant
    for verb, shape in QUEUE_SHAPES.items()
    for mutant in (
        Mutant(
            verb,
            "name",
            cut("queue.name = %(id)s::text AND"),
            s.only_the_target_changes(verb, QueueFactory, shape),
        ),
        Mutant(
            verb,
            "version seen",
            cut("AND queue.version = %(version_seen)s::bigint"),
            s.refused(verb, QueueFactory, shape, version_seen=99),
        ),
        Mutant(
            "lock_queue",
            f"{verb}: under the row's lock",
            cut("FOR NO KEY UPDATE"),
            s.verb_decides_under_the_lock(verb, QueueFactory, shape, "pgqueue_queue"),
        ),
    )
]

LIMIT_VERBS = [
    mutant
    for verb in ("set_limit", "set_rate", "set_weight", "pause_jobs", "resume_jobs")
    for shape in ({"paused": True} if verb == "resume_jobs" else {},)
    for mutant in (
        Mutant(verb, "id", cut("bound.id = %(id)s::text AND"), s.only_the_target_changes(verb, LimitFactory, shape)),
        Mutant(
            verb,
            "version seen",
            cut("AND bound.version = %(version_seen)s::bigint"),
            s.refused(verb, LimitFactory, shape, version_seen=99),
        ),
        Mutant(
            "lock_limit",
            f"{verb}: under the row's lock",
            cut("FOR NO KEY UPDATE"),
            s.verb_decides_under_the_lock(verb, LimitFactory, shape, "pgqueue_limit"),
        ),
    )
] + [
    Mutant(
        "pause_jobs",
        "not paused",
        cut("AND (bound.paused_at IS NULL OR bound.paused_until <= statement_timestamp()) RETURNING", "RETURNING"),
        s.refused("pause_jobs", LimitFactory, {"paused": True}),
    ),
    Mutant(
        "resume_jobs",
        "paused",
        cut("AND bound.paused_at IS NOT NULL"),
        s.refused("resume_jobs", LimitFactory, {}),
    ),
    Mutant(
        "resume_jobs",
        "and the pause has not ended by itself",
        cut("AND (bound.paused_until IS NULL OR bound.paused_until > statement_timestamp())"),
        s.refused("resume_jobs", LimitFactory, {"lapsed": True}),
    ),
    Mutant("declare_limit", "version 0", cut("WHERE bound.version = 0"), s.what_an_operator_set_is_not_declared_anew),
    Mutant("forget_limits", "version 0", cut("version = 0 AND"), s.what_an_operator_set_is_not_declared_anew),
    Mutant("forget_limits", "not declared", cut("AND id <> ALL (%(ids)s::text[])"), s.what_is_declared_is_kept),
]

REQUEST_VERBS = [
    mutant
    for verb in ("approve", "decline")
    for mutant in (
        Mutant(
            verb,
            "id",
            cut("request.id = %(id)s::bigint AND"),
            s.only_the_target_changes(verb, ApprovalRequestFactory, {}),
        ),
        Mutant(
            verb,
            "version seen",
            cut("AND request.version = %(version_seen)s::bigint"),
            s.refused(verb, ApprovalRequestFactory, {}, version_seen=99),
        ),
        Mutant(
            verb,
            "state",
            cut("AND request.state = 'waiting'"),
            s.refused(verb, ApprovalRequestFactory, {"declined": True}),
        ),
        Mutant(
            "lock_request",
            f"{verb}: under the row's lock",
            cut("FOR NO KEY UPDATE"),
            s.verb_decides_under_the_lock(verb, ApprovalRequestFactory, {}, "pgqueue_approvalrequest"),
        ),
    )
] + [
    Mutant(
        "approve",
        "not expired",
        cut("AND request.expires_at > statement_timestamp()"),
        s.refused("approve", ApprovalRequestFactory, {"expired": True}),
    ),
    Mutant(
        "approve",
        "the approver is known",
        cut("AND %(actor_id)s::text IS NOT NULL"),
        s.refused("approve", ApprovalRequestFactory, {}, actor_id=None),
    ),
    Mutant(
        "approve",
        "asked for by somebody else",
        cut("request.asked_by_id IS DISTINCT FROM %(actor_id)s::text AND", "%(actor_id)s::text IS NOT NULL AND"),
        s.refused("approve", ApprovalRequestFactory, {"asked_by_id": "1"}),
    ),
    Mutant(
        "approve",
        "asked for by somebody else",
        cut("AND lower(request.asked_by) <> lower(%(actor_name)s::text)", "AND %(actor_name)s::text IS NOT NULL"),
        s.refused("approve", ApprovalRequestFactory, {"asked_by": "Ada"}),
    ),
    Mutant(
        "ask_for_approval",
        "an idempotency key asks once (unique index)",
        cut("%(idempotency_key)s::text )", "%(idempotency_key)s::text || random() )"),
        s.key_asks_once,
    ),
]

WORKER_SHAPES = {"drain_worker": {}, "forget_worker": {"silent": True}}
LEASE_IS_OVER = "worker.heartbeat_at < statement_timestamp() - make_interval(secs => worker.lease_seconds)"
LEASE_RUNS = LEASE_IS_OVER.replace("<", ">=")
WORKER_VERBS = [
    mutant
    for verb, shape in WORKER_SHAPES.items()
    for mutant in (
        Mutant(
            verb,
            "id",
            cut("worker.id = %(id)s::bigint AND"),
            s.only_the_target_changes(verb, WorkerFactory, shape),
        ),
        Mutant(
            verb,
            "version seen",
            cut("AND worker.version = %(version_seen)s::bigint"),
            s.refused(verb, WorkerFactory, shape, version_seen=99),
        ),
        Mutant(
            verb,
            "not stopped",
            cut("AND worker.stopped_at IS NULL"),
            s.refused(verb, WorkerFactory, {**shape, "stopped": True}),
        ),
        Mutant(
            "lock_worker",
            f"{verb}: under the row's lock",
            cut("FOR NO KEY UPDATE OF worker"),
            s.verb_decides_under_the_lock(verb, WorkerFactory, shape, "pgqueue_worker"),
        ),
    )
] + [
    Mutant(
        "drain_worker",
        "heard within its lease",
        cut(f"AND {LEASE_RUNS}"),
        s.refused("drain_worker", WorkerFactory, {"silent": True}),
    ),
    Mutant(
        "drain_worker",
        "not draining yet",
        cut("AND NOT worker.draining"),
        s.refused("drain_worker", WorkerFactory, {"draining": True}),
    ),
    Mutant(
        "drain_worker",
        "not asked before",
        cut("AND worker.drain_requested_at IS NULL"),
        s.refused("drain_worker", WorkerFactory, {"asked": True}),
    ),
    Mutant(
        "forget_worker",
        "silent for its whole lease",
        cut(f"AND {LEASE_IS_OVER}"),
        s.refused("forget_worker", WorkerFactory, {}),
    ),
    Mutant(
        "forget_worker",
        "without leases as this statement sees them",
        cut("AND NOT EXISTS", "AND 0 = 0 OR EXISTS"),
        s.worker_with_leases_is_not_forgotten,
    ),
]

FURTHER_GUARDS = [
    Mutant(
        verb,
        "no effect with an unknown outcome",
        cut("AND job.unknown_effects = 0"),
        s.refused(verb, JobFactory, {"retrying": True, **TERMINAL_UNKNOWN}),
    )
    for verb in ("cancel", "give_up")
] + [
    Mutant(
        "requeue",
        "one more attempt fits its column",
        cut("AND job.attempts < 32767"),
        s.refused("requeue", JobFactory, {"dead": True, "attempts": 32767, "max_attempts": 32767}),
    ),
    Mutant(
        "skip_head",
        "it blocks its key",
        cut("AND job.blocks_key"),
        s.refused("skip_head", JobFactory, {"keyed": True}),
    ),
    Mutant(
        "ask_to_stop",
        "not asked before",
        cut("AND job.stop_requested_at IS NULL"),
        s.refused("ask_to_stop", JobFactory, {"stop_requested": True}),
    ),
    Mutant(
        "break_lease",
        "fence",
        cut("AND job.fence = %(fence)s::bigint"),
        s.refused("break_lease", JobFactory, {"running": True}, fence=0),
    ),
    Mutant(
        "break_lease",
        "and stage as locked",
        cut("AND job.stage = %(stage)s::text"),
        s.refused("break_lease", JobFactory, {"running": True}, stage="confirmed"),
    ),
    Mutant(
        "lock_job",
        "",
        (*SEEN, ("FOR NO KEY UPDATE", "FOR NO KEY UPDATE OF job")),
        s.break_lease_decides_by_what_the_owner_committed,
        {"break_lease": cut("AND job.stage = %(stage)s::text")},
    ),
    Mutant(
        "pause_queue",
        "not paused",
        cut("AND (queue.paused_at IS NULL OR queue.paused_until <= statement_timestamp())"),
        s.refused("pause_queue", QueueFactory, {"paused": True}),
    ),
    Mutant(
        "resume_queue",
        "paused",
        cut("AND queue.paused_at IS NOT NULL"),
        s.refused("resume_queue", QueueFactory, {}),
    ),
    Mutant(
        "resume_queue",
        "and the pause has not ended by itself",
        cut("AND (queue.paused_until IS NULL OR queue.paused_until > statement_timestamp())"),
        s.refused("resume_queue", QueueFactory, {"lapsed": True}),
    ),
    Mutant(
        "audit",
        "an idempotency key is applied once (unique index)",
        cut("told.idempotency_key, told.params", "NULL, told.params"),
        s.key_is_applied_once,
    ),
    Mutant(
        "enqueue_once",
        "(task, key) is unique in pgqueue_operationkey",
        cut("%(operation_key)s::text, %(digest)s::text", "%(operation_key)s::text || random(), %(digest)s::text"),
        s.key_is_spent_once,
    ),
    Mutant(
        "enqueue_unique",
        "(task, unique_key) is unique while a job of the key is unfinished, or has not started (unique indexes)",
        cut("ON CONFLICT DO NOTHING"),
        s.unique_key_is_taken_once,
    ),
    Mutant(
        "enqueue_in_window",
        "(task, key) is unique in pgqueue_window",
        cut("%(task)s::text, %(unique_key)s::text )", "%(task)s::text, %(unique_key)s::text || random() )"),
        s.window_is_opened_once,
    ),
    Mutant(
        "enqueue_in_window",
        "its latest window has ended",
        cut("WHERE latest.ends_at <= statement_timestamp()"),
        s.window_is_opened_once,
    ),
    *(
        Mutant("replace_waiting", guard, change, s.only_what_waits_is_replaced(**shape))
        for guard, change, shape in (
            ("task", cut("waiting.task = %(task)s::text AND"), {"task": "tests.testapp.tasks.echo"}),
            ("and key", cut("AND waiting.unique_key = %(unique_key)s::text"), {"unique_key": "other"}),
            ("unique until it started", cut("AND waiting.until_started"), {"until_started": None}),
            ("it was never claimed", cut("AND waiting.fence = 0"), {"fence": 7}),
            (
                "and it still waits",
                cut("AND waiting.state IN ('pending', 'paused')"),
                {"cancelled": True},
            ),
        )
    ),
    Mutant(
        "find_replay",
        "",
        cut("action.outcome = 'applied'", "action.outcome = 'applied' AND false"),
        s.second_of_two_equal_requests_is_a_replay,
    ),
]

BULK = [
    Mutant("start_bulk", "not started before", cut("AND bulk.state = 'frozen'"), s.bulk_runs_once),
    Mutant("stop_bulk", "it runs", cut("AND bulk.state = 'running'"), s.only_a_running_bulk_stops),
    Mutant("finish_bulk", "it runs", cut("AND bulk.state = 'running'"), s.only_a_running_bulk_ends),
    Mutant("finish_bulk", "no row is left", cut("AND NOT EXISTS", "OR EXISTS"), s.bulk_with_open_rows_does_not_end),
    Mutant("note_bulk_items", "nothing is noted yet", cut("AND item.outcome IS NULL"), s.outcome_of_a_row_stays),
]

PRUNING = [
    Mutant(
        "prune_jobs",
        "ended long ago",
        cut("AND job.finished_at <", "AND job.finished_at IS NOT NULL OR job.finished_at <"),
        s.left_by_pruning(1, succeeded=True),
    ),
    Mutant(
        "prune_jobs",
        "for its state",
        cut(
            "WHEN job.state = 'dead' THEN %(dead_retention_seconds)s::float8",
            "WHEN job.state = 'dead' THEN %(retention_seconds)s::float8",
        ),
        s.left_by_pruning(8, dead=True),
    ),
    Mutant(
        "prune_jobs",
        "no effect was given up as unknown",
        cut("AND job.stage <> 'outcome_unknown'"),
        s.left_by_pruning(99, dead=True, stage=Stage.OUTCOME_UNKNOWN),
    ),
    Mutant(
        "prune_jobs",
        "a row that somebody holds is passed over",
        cut("FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
        s.pruning_passes_over_a_lock,
    ),
    *(
        Mutant(
            statement,
            guard,
            cut(f"AND {column} <", f"AND {column} IS NOT NULL OR {column} <"),
            s.young_rows_are_left(statement),
        )
        for statement, guard, column in (
            ("prune_workers", "silent for long", "worker.heartbeat_at"),
            ("prune_windows", "ended long ago", "spent.ends_at"),
        )
    ),
    Mutant(
        "prune_minute_stats",
        "too old",
        cut("WHERE stat.minute <", "WHERE stat.minute IS NOT NULL OR stat.minute <"),
        s.young_rows_are_left("prune_minute_stats"),
    ),
    *(
        Mutant(
            statement,
            "a row that somebody holds is passed over",
            cut("FOR UPDATE SKIP LOCKED", "FOR UPDATE"),
            s.held_rows_are_passed_over(statement),
        )
        for statement in ("prune_workers", "prune_windows", "prune_minute_stats")
    ),
]

MUTANTS = [
    *CLAIM,
    *RENEW,
    *ENDINGS,
    *TAKEOVER,
    *BLOCKERS,
    *EFFECTS,
    *JOB_VERBS,
    *QUEUE_VERBS,
    *LIMIT_VERBS,
    *BULK,
    *PRUNING,
]
MUTANTS += [*COMPLETIONS, *REQUEST_VERBS, *WORKER_VERBS, *FURTHER_GUARDS]
RACING = {
    s.pruning_passes_over_a_lock,
    *s.CLAIMS_PASS_OVER_A_LOCK,
    s.claim_behind_a_mark_passes_over_a_lock,
    s.claim_of_several_tasks_goes_by_age,
    s.second_half_passes_over_a_lock,
    s.second_half_sees_a_job_started_after_the_pick,
    s.second_half_counts_what_was_started_after_the_pick,
    s.renewal_passes_over_a_lock,
    s.takeover_passes_over_a_lock,
    s.effect_is_opened_once_by_two_calls_of_one_run,
    s.question_passes_over_a_lock,
    s.takeover_decides_by_what_the_owner_committed,
    s.break_lease_decides_by_what_the_owner_committed,
    s.second_of_two_equal_requests_is_a_replay,
}


def needs_two_sessions(mutant):
    name = mutant.scenario.__name__
    return mutant.scenario in RACING or name.startswith(
        (
            "ending_passes_over_a_lock",
            "verb_decides_under_the_lock",
            "pick_needs_the_lock",
            "left_when_it_changed",
            "held_rows_are_passed_over",
            "session_is_left",
        )
    )

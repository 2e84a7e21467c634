"""What each verb does, in a sentence or two, for whoever is about to do it."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

CONSEQUENCES = {
    "requeue": _("The job is due now, with at least one more attempt. Its attempts and errors are kept."),
    "cancel": _("The job will not run. It can be requeued later."),
    "hold": _("The job waits until somebody unholds it."),
    "unhold": _("The job goes back to where it was held, and runs when it is due."),
    "give_up": _("The job is dead. It can be requeued later."),
    "ask_to_stop": _("A request: the job stays running until its code honours it or its worker is lost."),
    "break_lease": _(
        "The worker loses the job now, and nothing it still writes is accepted, but it may go on running. The job is "
        "retried, or cancelled if a stop was requested. If its task is undeclared, or the outcome of an effect is "
        "unknown and its task is not idempotent, it becomes unknown instead and waits for a person."
    ),
    "happened": _(
        "The result is stored. When nothing else is unknown, the job waits to be retried and goes on behind the call, "
        "which is not made again; no attempt is charged."
    ),
    "happened_finish": _("The result is stored, and the job has succeeded: its code does not run again."),
    "compensate": _(
        "The result is stored, the job is dead and is never requeued, and the task that its author declared to undo "
        "the effect is enqueued, once."
    ),
    "did_not_happen": _("The effect may be called again. When nothing else is unknown, the job runs again now."),
    "give_up_unknown": _("The job is dead, and is never run again: its effect may have happened."),
    "ask_again": _("The other side is asked now what became of the call. The job waits for the answer."),
    "take": _("Your name stands beside the job. Nothing else changes."),
    "hand_over": _("Another name stands beside the job. Nothing else changes."),
    "snooze": _("The job is out of the way until then. Nothing else changes."),
    "clone": _(
        "A new job, linked to this one, with its arguments or with others; this one stays as it is, and goes on if it "
        "runs. The new one has an operation key of its own: every effect of this one may happen again."
    ),
    "purge": _(
        "Its arguments, its result, the texts of its errors and what effects answered are deleted for good. The job "
        "stays, with its keys and the other side's references, and never runs again."
    ),
    "run_now": _("The job is due now; its attempts are kept."),
    "reschedule": _("The job is due then, and not before."),
    "reprioritise": _("Jobs of a higher priority are taken first. Nothing else changes."),
    "move_queue": _("Workers of that queue take it, under the pause and the limits it has. Nothing else changes."),
    "pause_queue": _("No worker takes from this queue any more, until somebody resumes it. Running jobs go on."),
    "resume_queue": _(
        "Workers take from this queue again: what is due starts at once, as fast as they can. A limit on how many "
        "start per second slows it down."
    ),
    "skip_head": _("Younger jobs of its shard key no longer wait for it, whatever becomes of it."),
    "set_limit": _("No more jobs than that run at once. Those that run go on, also where they are more."),
    "set_rate": _("No more jobs than that start from now on."),
    "set_weight": _("In its turn among the tenants of a queue, the tenant has so many jobs."),
    "pause_jobs": _("No worker takes such a job any more, until somebody resumes them. Running jobs go on."),
    "resume_jobs": _("Workers take such jobs again."),
    "drain_worker": _(
        "It takes no more jobs, finishes those that run, and ends, as after SIGTERM. It hears that with its next "
        "heartbeat. Whoever keeps workers running may start another in its place."
    ),
    "forget_worker": _(
        "For a worker that is gone: it counts as stopped, and nobody is told of it any more. It holds no job. If it "
        "comes back, it is there again."
    ),
    "approve": _("What was asked for is done now, in the name and words of who asked, if nothing has changed since."),
    "decline": _("Nothing is done. It can be asked for again."),
}

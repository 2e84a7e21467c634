"""What the console calls things."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from ..states import Outcome

VERB_LABELS = {
    "requeue": _("Requeue…"),
    "cancel": _("Cancel…"),
    "hold": _("Hold…"),
    "unhold": _("Unhold…"),
    "give_up": _("Give up…"),
    "ask_to_stop": _("Ask to stop…"),
    "break_lease": _("Break lease…"),
    "pause_queue": _("Pause…"),
    "resume_queue": _("Resume…"),
}

CONSEQUENCES = {
    "requeue": _("A new attempt becomes due now. Nothing is erased."),
    "cancel": _("The job will not run. It can be requeued later."),
    "hold": _("The job waits until somebody lets it go on."),
    "unhold": _("The job goes back to where it was held, and runs when it is due."),
    "give_up": _("The job is dead. It can be requeued later."),
    "ask_to_stop": _("A request: the job stays running until its code honours it or its worker is lost."),
    "break_lease": _(
        "The worker loses the job now, and nothing it still writes is accepted. It may go on running: what happens to "
        "the job follows its recovery policy, and an undeclared task waits for a person."
    ),
    "pause_queue": _("No worker takes from this queue any more. Running jobs go on."),
    "resume_queue": _("Workers take from this queue again."),
}

OUTCOMES = {
    Outcome.APPLIED: _("done."),
    Outcome.REPLAYED: _("already done, not done twice."),
    Outcome.CHANGED: _("Changed since you looked: nothing was done."),
    Outcome.REFUSED_RUNNING: _("The job is running: nothing was done."),
    Outcome.REFUSED_UNKNOWN: _("An outcome of this job is unknown: nothing was done."),
    Outcome.REFUSED_STATE: _("Its state does not allow this: nothing was done."),
    Outcome.GONE: _("It does not exist any more: nothing was done."),
    Outcome.BUSY: _("Somebody else is working on it at this moment: nothing was done. Try again."),
    Outcome.FORBIDDEN: _("You do not have the permission: nothing was done."),
}

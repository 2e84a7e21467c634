"""Every error of the project, and the two verbs a task can raise.

An error carries its facts as attributes and builds its own message from them: what, which id, seen versus
expected, what to do. Messages hold no payload values and no credentials. `args` are the facts as given to
the constructor, so that errors survive pickling and copying. `Retry` and `Bury` are not errors but verbs,
hence their names.
"""

from django.core.exceptions import ImproperlyConfigured

LONGEST_NAME = 200


class PGQueueError(Exception):
    """Base of every error of the project."""


class PayloadError(PGQueueError, ValueError):
    """An argument that would not come back from jsonb as the same value.

    `path` names it (`args[0]['x']`), `reason` says what is wrong with it, `advice` what to do instead.
    """

    def __init__(self, path: str, reason: str, advice: str) -> None:
        super().__init__(path, reason, advice)
        self.path = path
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.path} {self.reason}: {self.advice}."


class PayloadTypeError(PayloadError, TypeError):
    """An argument of a type that JSON does not have; a TypeError too, as Django's own backends raise."""


class PayloadTooLargeError(PayloadError):
    """Arguments above the size limit.

    `size_bytes` is what was counted: counting stops once the limit is passed, so the whole may be larger.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(
            "arguments",
            f"take at least {size_bytes:,} bytes of JSON, the limit is {limit_bytes:,}",
            "store the data elsewhere and pass its key",
        )
        self.args = (size_bytes, limit_bytes)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes


class ResultError(PGQueueError, ValueError, TypeError):
    """A return value that cannot be stored, as `PayloadError` says it; a TypeError too, as Django's backends raise."""

    def __init__(self, path: str, reason: str, advice: str) -> None:
        super().__init__(path, reason, advice)
        self.path = path
        self.reason = reason
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.path} {self.reason}: {self.advice}."


class ArgumentsError(PGQueueError, TypeError):
    """Arguments that the task's function does not take; nothing was written. `reason` is Python's own."""

    def __init__(self, task: str, reason: str) -> None:
        super().__init__(task, reason)
        self.task = task
        self.reason = reason

    def __str__(self) -> str:
        return f"{shown(self.task)} cannot be called with these arguments: {self.reason}."


class OperationKeyConflictError(PGQueueError):
    """An operation key that already stands for a job with other arguments."""

    def __init__(self, task: str, key: str, job_id: int) -> None:
        super().__init__(task, key, job_id)
        self.task = task
        self.key = key
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"Operation key {shown(self.key)} of task {shown(self.task)} belongs to job {self.job_id}, "
            f"which was enqueued with other arguments: pass the same arguments, or use another key."
        )


class UnknownTaskError(PGQueueError):
    """A task name that nothing in this process is registered under."""

    def __init__(self, task: str) -> None:
        super().__init__(task)
        self.task = task

    def __str__(self) -> str:
        return (
            f"No task is registered as {shown(self.task)}: deploy the code that defines it, in a tasks.py "
            f"of an installed app, or give its new function the old name."
        )


class LeaseLostError(PGQueueError):
    """A write refused because the job is no longer owned under this fence."""

    def __init__(self, job_id: int, fence: int) -> None:
        super().__init__(job_id, fence)
        self.job_id = job_id
        self.fence = fence

    def __str__(self) -> str:
        return (
            f"Job {self.job_id} is no longer owned under fence {self.fence}: its lease was lost, and "
            f"nothing was written. Stop working on it; whoever owns it now writes its ending."
        )


class EffectRefusedError(PGQueueError):
    """A call to the outside world that must not begin here; nothing was called."""

    def __init__(self, job_id: int, effect: str, reason: str) -> None:
        super().__init__(job_id, effect, reason)
        self.job_id = job_id
        self.effect = effect
        self.reason = reason

    def __str__(self) -> str:
        return f"Effect {shown(self.effect)} of job {self.job_id} was not called: {self.reason}."


class OutcomeUnknownError(PGQueueError):
    """An effect that may or may not have happened: nobody knows what it came to."""

    def __init__(self, job_id: int, effects: tuple[str, ...]) -> None:
        super().__init__(job_id, effects)
        self.job_id = job_id
        self.effects = effects

    def __str__(self) -> str:
        names = ", ".join(shown(name) for name in self.effects)
        return (
            f"Job {self.job_id} left an effect whose outcome is unknown ({names}): it may have happened. "
            f"It is not called again before that is settled."
        )


class SettingsError(PGQueueError, ImproperlyConfigured):
    """Settings that cannot be used: `problem` names the key, seen and expected; `hint` what to do."""

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem} {self.hint}".rstrip()


class JobNotFoundError(PGQueueError, LookupError):
    """No job has this id; `job_id` is what was asked for, also when it is not a number."""

    def __init__(self, job_id: int | str) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"Job {shown(self.job_id)} does not exist: the id is wrong, or its row was deleted."


class UniqueKeyBusyError(PGQueueError):
    """Jobs of a unique key came and went faster than an enqueue could tell which of them is there.

    In a transaction of Repeatable Read or above it comes at once: what another one committed cannot be seen there.
    """

    def __init__(self, task: str, key: str) -> None:
        super().__init__(task, key)
        self.task = task
        self.key = key

    def __str__(self) -> str:
        return (
            f"Nothing was enqueued: jobs of task {shown(self.task)} with the unique key {shown(self.key)} came and "
            "went meanwhile. Enqueue again, in a transaction of Read Committed."
        )


class JobCancelledError(PGQueueError):
    """A job that was cancelled before it had a result."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"Job {self.job_id} was cancelled: it has no result. An operator can requeue it."


class JobPurgedError(PGQueueError):
    """A job whose arguments and result an operator has purged."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"Job {self.job_id} was purged: its arguments, its result and the texts of its errors are gone. "
            f"The audit log says who did that, when and why."
        )


class JobLostError(PGQueueError):
    """An attempt whose worker disappeared: its lease ran out without an ending."""

    def __init__(self, job_id: int, fence: int) -> None:
        super().__init__(job_id, fence)
        self.job_id = job_id
        self.fence = fence

    def __str__(self) -> str:
        return (
            f"The worker of job {self.job_id} was lost under fence {self.fence}: its lease ran out without "
            f"an ending. Whether the attempt had an effect is not known from this alone."
        )


class AttemptFailedError(PGQueueError):
    """Stands for a task's exception that is over or must not be shown, in a class of the same name.

    `traceback` is its text, redacted and bounded.
    """

    def __init__(self, class_path: str, traceback: str) -> None:
        super().__init__(class_path, traceback)
        self.class_path = class_path
        self.traceback = traceback

    def __str__(self) -> str:
        return f"{self.class_path}\n{self.traceback}"


class JobTimeoutError(PGQueueError, TimeoutError):
    """A run that took longer than it may.

    The facts are not known where it is raised into a thread, at any point of the task: both are then None.
    """

    def __init__(self, job_id: int | None = None, limit_seconds: float | None = None) -> None:
        super().__init__(job_id, limit_seconds)
        self.job_id = job_id
        self.limit_seconds = limit_seconds

    def __str__(self) -> str:
        if self.job_id is None or self.limit_seconds is None:
            return "This job has run for longer than its limit: end it now."
        return (
            f"Job {self.job_id} ran for longer than its limit of {self.limit_seconds:g} seconds: make it quicker or "
            f"split it, or give its task a larger max_run_seconds."
        )


class RunGoneError(PGQueueError):
    """What ran a job is gone without an ending: its thread, or the event loop that it was on."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return (
            f"The thread or event loop that ran job {self.job_id} is gone. A task ended the thread itself, as C code"
            " does with pthread_exit, or closed file descriptors that were not its own."
        )


class JobStoppedError(PGQueueError):
    """A run that ended because somebody asked for that."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return f"Job {self.job_id} was asked to stop, and did. An operator can requeue it."


class Retry(Exception):
    """Raise it in a task to try again later.

    `after_seconds` sets the delay (0 to 7 days); without it the usual backoff applies. The attempt counts.
    """

    def __init__(self, reason: str = "", after_seconds: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after_seconds = after_seconds


class Bury(Exception):
    """Raise it in a task to end the job as dead now, whatever attempts are left."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def shown(name: object) -> str:
    """Quote a name for a message: escaped, and never longer than a line or two."""
    text = repr(name)
    return text if len(text) <= LONGEST_NAME else text[:LONGEST_NAME] + "...'"

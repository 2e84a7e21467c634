"""The `PGQUEUE` settings dict, read into one frozen dataclass."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Collection, Iterator, Mapping
from functools import lru_cache
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from .bounds import LONGEST_SECONDS
from .exceptions import SettingsError
from .states import LIMIT_KINDS
from .verbs import VERBS


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default; keys of `PGQUEUE` are the field names in capitals."""

    database: str | None = None
    """Alias of the database the queue lives in; None asks the routers where jobs are written."""
    on_connect: str | None = None
    """Dotted path of `function(connection, role)`, called with each psycopg connection of the queue's own once it is
    made: Django's `connection_created` is not sent for these."""
    task_modules: tuple[str, ...] = ("tasks",)
    """Module names looked for in every installed app when a worker starts."""
    excluded_task_apps: tuple[str, ...] = ()
    """Installed apps, by label or by name, whose task modules are not imported."""
    lease_seconds: float = 60.0
    heartbeats_per_lease: int = 3
    concurrency: int = 10
    async_concurrency: int = 100
    """Async tasks that run at once on the event loop of a worker process, beside the threads."""
    async_threads: int = 16
    """Most of these that hold a thread, and so a connection: an async job takes one when it first uses the ORM, an
    effect or `sync_to_async`, and keeps it until its end. While all are taken, the next waits."""
    batch_size: int = 500
    """Most jobs that one claim takes, and so the most a worker ever prefetches."""
    prefetch_seconds: float = 0.2
    """Work held in advance: as many jobs as the threads finish in this time."""
    settle_max_delay_seconds: float = 0.005
    """How long endings wait for others to travel with while the threads have more work."""
    poll_seconds: float = 10.0
    """Longest sleep while LISTEN works."""
    poll_without_listen_seconds: float = 0.5
    listen: bool = True
    notify: bool = True
    notify_window_seconds: float = 0.02
    """At most one NOTIFY per queue and process in this time; a woken worker looks again after it."""
    limits: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """What bounds the jobs of a queue, tenant, task or resource: `{"tenant:acme": {"max_running": 3}}`. Written down
    when a worker starts, until an operator changes it."""
    ageing_every: int = 8
    """One claim in so many walks the priorities from the lowest up, so that none starves; 1 turns them round."""
    max_attempts: int = 8
    max_lease_losses: int = 3
    """Losses suffered alone after which a job is not run again."""
    max_run_seconds: float | None = None
    """Longest run of a job whose task has no limit of its own; None is for ever."""
    kill_grace_seconds: float = 30.0
    """How long a run may go on past its limit before its process drains and leaves, to be replaced."""
    backoff_base_seconds: float = 2.0
    backoff_cap_seconds: float = 3600.0
    call_deadline_seconds: float = 300.0
    """How long after it began a call to the outside world may still take effect; sooner nobody may say it did not."""
    replay_safe_seconds: float = 86_400.0
    """How long after the first call a remote system surely knows its idempotency key."""
    max_probes: int = 10
    """Questions about one unknown outcome after which a person must decide."""
    probe_timeout_seconds: float = 60.0
    """How long a probe may take."""
    probe_backoff_cap_seconds: float = 600.0
    """Longest delay after a probe that failed."""
    require_recovery: bool = False
    """Whether a task without a recovery policy is refused."""
    max_payload_bytes: int = 256 * 1024
    max_result_bytes: int = 64 * 1024
    claim_timeout_seconds: float = 5.0
    heartbeat_timeout_seconds: float = 3.0
    lock_timeout_seconds: float = 1.0
    """Longest an operator's action waits for the lock of its row before it answers `busy`."""
    worker_retention_seconds: float = 7 * 86400.0
    """How long rows of stopped and silent workers are kept for reading."""
    retention_seconds: float | None = None
    """How long succeeded and cancelled jobs are kept before `pgqueue_prune` deletes them; None is for ever."""
    dead_retention_seconds: float | None = None
    """How long dead jobs are; None is for ever, and so are those with an effect that may have happened."""
    queues: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Other values for the jobs of a queue, by its name."""
    tasks: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """Other values for the jobs of a task, by the path of its function."""
    two_person_verbs: tuple[str, ...] = ()
    """Operators' verbs that a second person must approve, whoever uses one, in the console or from a shell."""
    approval_seconds: float = 86_400.0
    """How long what was asked for may be approved."""
    console_read_only: bool = False
    """Whether the console offers no verb, whatever permissions its users have."""
    console_authorize: str | None = None
    """Dotted path of `function(user, verb, queue, task) -> bool`, asked for every row that somebody acts on."""
    console_timeout_seconds: float = 2.0
    """Longest time a page of the console may take in the database."""

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between two renewals of a lease."""
        return self.lease_seconds / self.heartbeats_per_lease


_FIELDS = {field.name.upper(): field for field in dataclasses.fields(Settings)}
OVERRIDABLE = (
    "MAX_ATTEMPTS",
    "MAX_LEASE_LOSSES",
    "MAX_RUN_SECONDS",
    "KILL_GRACE_SECONDS",
    "BACKOFF_BASE_SECONDS",
    "BACKOFF_CAP_SECONDS",
    "CALL_DEADLINE_SECONDS",
    "REPLAY_SAFE_SECONDS",
    "MAX_PAYLOAD_BYTES",
    "MAX_RESULT_BYTES",
)
"""Settings that are about one job, and so may differ from queue to queue and from task to task."""
_OVERRIDES = ("QUEUES", "TASKS")
_TYPES: dict[str, tuple[type, ...]] = {
    "str | None": (str, type(None)),
    "tuple[str, ...]": (tuple, list),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "int": (int,),
    "bool": (bool,),
    "Mapping[str, Mapping[str, Any]]": (dict,),
}

ASKABLE = tuple(name for name, verb in VERBS.items() if verb.kind != "request")
"""Verbs that may need a second person: all but those by which one decides."""
_FUNCTIONS = ("CONSOLE_AUTHORIZE", "ON_CONNECT")
BOUNDS = ("max_running", "rate_per_second", "burst", "weight")
_NAMES = {
    "TASK_MODULES": "the names of modules, such as ('tasks',)",
    "EXCLUDED_TASK_APPS": "the names or labels of apps, such as ('shop',)",
}
_LARGEST = {"MAX_ATTEMPTS": 32_000, "MAX_LEASE_LOSSES": 32_000}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One fault of the settings: which key, what is wrong, and what to do about it."""

    key: str
    reason: str
    advice: str
    within: tuple[str, ...] = ()
    """The keys around it, outermost first."""

    @property
    def message(self) -> str:
        """What is wrong, as a sentence."""
        place = "".join(f"[{key!r}]" for key in (*self.within, self.key) if key)
        return f"PGQUEUE{place} {self.reason}."

    @property
    def hint(self) -> str:
        """What to do, as a sentence."""
        end = "" if self.advice.endswith("?") else "."
        return f"{self.advice[0].upper()}{self.advice[1:]}{end}"


def problems(given: Any) -> Iterator[Problem]:
    """Yield every fault of a `PGQUEUE` dict; the system checks and `current()` both read this."""
    if not isinstance(given, dict):
        yield Problem("", f"is read from a {type(given).__name__}, not a dict", "write PGQUEUE = {...}")
        return
    for key, value in given.items():
        yield from _key_problems(key, value, known=_FIELDS)
        if key in _OVERRIDES and isinstance(value, dict):
            yield from _override_problems(key, value)
    beats = given.get("HEARTBEATS_PER_LEASE", Settings().heartbeats_per_lease)
    if isinstance(beats, int) and beats < 2:
        reason = f"is {beats}, so a lease would run out before its first renewal"
        yield Problem("HEARTBEATS_PER_LEASE", reason, "use 3, so that one late heartbeat loses nothing")


def _override_problems(key: str, overrides: dict[Any, Any]) -> Iterator[Problem]:
    for name, given in overrides.items():
        if not (isinstance(name, str) and name):
            yield Problem(str(name), "is no name", f"use the name of a {key[:-1].lower()}", within=(key,))
        elif not isinstance(given, dict):
            yield Problem(name, f"is {given!r}", "give it a dict of settings", within=(key,))
        else:
            for inner, value in given.items():
                for problem in _key_problems(inner, value, known=OVERRIDABLE):
                    yield dataclasses.replace(problem, within=(key, name))


def _key_problems(key: str, value: Any, *, known: Collection[str]) -> Iterator[Problem]:
    if key not in known:
        yield _unknown(key, known)
        return
    field = _FIELDS[key]
    fits = isinstance(value, _TYPES[str(field.type)])
    if not fits or (isinstance(value, bool) and str(field.type) != "bool"):
        yield Problem(key, f"is {value!r}", f"give it a value of type {field.type}")
    elif isinstance(value, int | float) and not isinstance(value, bool) and not 0 < value < float("inf"):
        yield Problem(key, f"is {value!r}", "give it a finite value greater than zero")
    elif key.endswith("_SECONDS") and value is not None and value > LONGEST_SECONDS:
        yield Problem(key, f"is {value!r}", f"give it at most {LONGEST_SECONDS}, a hundred years")
    elif key in _LARGEST and value > _LARGEST[key]:
        yield Problem(key, f"is {value!r}", f"give it at most {_LARGEST[key]}, which is what the column holds")
    elif key == "DATABASE" and value is not None and value not in django_settings.DATABASES:
        known = ", ".join(django_settings.DATABASES)
        yield Problem(key, f"is {value!r}, which is not in DATABASES", f"use one of: {known}")
    elif key in _FUNCTIONS and value is not None and not _is_importable(value):
        yield Problem(key, f"is {value!r}, which cannot be imported", "give it the dotted path of a function")
    elif key == "LIMITS":
        yield from _limit_problems(value)
    elif key == "TWO_PERSON_VERBS" and (strangers := [name for name in value if name not in ASKABLE]):
        yield Problem(key, f"names {strangers[0]!r}", f"name verbs of operators: {', '.join(ASKABLE)}")
    elif key in _NAMES and not all(isinstance(name, str) and name for name in value):
        yield Problem(key, f"is {value!r}", f"give it {_NAMES[key]}")


def _unknown(key: Any, known: Collection[str]) -> Problem:
    near = difflib.get_close_matches(str(key).upper(), known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"known settings are {', '.join(sorted(known))}"
    if key in _FIELDS:
        return Problem(key, "holds for all jobs, and cannot be set for some", advice)
    return Problem(str(key), "is not a setting", advice)


def _is_importable(path: str) -> bool:
    try:
        return callable(import_string(path))
    except ImportError:
        return False


def _limit_problems(limits: dict[Any, Any]) -> Iterator[Problem]:
    for name, bounds in limits.items():
        kind, _, rest = str(name).partition(":")
        if kind not in LIMIT_KINDS or not rest:
            reason = f"names {name!r}"
            yield Problem("LIMITS", reason, f"use a kind ({', '.join(LIMIT_KINDS)}) and a name, as in 'tenant:acme'")
        elif not isinstance(bounds, dict) or not all(_is_bound(key, value) for key, value in bounds.items()):
            reason = f"has {bounds!r} for {name!r}"
            yield Problem("LIMITS", reason, f"give numbers above zero for {', '.join(BOUNDS)}")
        elif ("burst" in bounds) > ("rate_per_second" in bounds):
            yield Problem("LIMITS", f"has a burst without a rate for {name!r}", "add rate_per_second")


def _is_bound(key: Any, value: Any) -> bool:
    numbers = (int, float) if key == "rate_per_second" else (int,)
    return key in BOUNDS and isinstance(value, numbers) and not isinstance(value, bool) and 0 < value < 2**31


@lru_cache(maxsize=1)
def current() -> Settings:
    """Return the settings in force. Raise `SettingsError` naming the first fault."""
    given = getattr(django_settings, "PGQUEUE", {})
    for problem in problems(given):
        raise SettingsError(problem.message, problem.hint)
    values = {_FIELDS[key].name: value for key, value in given.items()}
    for name in ("task_modules", "excluded_task_apps", "two_person_verbs"):
        if name in values:
            values[name] = tuple(values[name])
    return Settings(**values)


def of(*, queue: str, task: str) -> Settings:
    """Return the settings for a job: those of its task come first, then those of its queue, then everybody's."""
    settings = current()
    return _merged(queue, task) if settings.queues or settings.tasks else settings


@lru_cache(maxsize=1024)
def _merged(queue: str, task: str) -> Settings:
    settings = current()
    given = {**settings.queues.get(queue, {}), **settings.tasks.get(task, {})}
    return dataclasses.replace(settings, **{_FIELDS[key].name: value for key, value in given.items()})


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == "PGQUEUE":
        current.cache_clear()
        _merged.cache_clear()


setting_changed.connect(_forget)

"""What an exception means for the job, and what may be stored of it. Pure.

`classify` decides in this order: the verbs and the queue's own errors; the task's `retry_on` and `bury_on`;
the members of an exception group, where they agree; the sqlstate; the type (`BY_TYPE`); a remote's
Retry-After. Anything else is a system failure and is retried, BaseExceptions (SystemExit, KeyboardInterrupt,
CancelledError, GeneratorExit) included: they ended the attempt, and the worker decides about itself apart.
"""

import re
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from django import db
from django.core import exceptions as django_exceptions

from .backoff import retry_after_seconds
from .exceptions import (
    Bury,
    JobCancelledError,
    JobLostError,
    JobNotFoundError,
    JobStoppedError,
    LeaseLostError,
    OperationKeyConflictError,
    PayloadError,
    ResultError,
    Retry,
    UnknownTaskError,
)
from .foreign import class_name, classes, is_a, members, read, text, traceback_of

LONGEST_CLASS_PATH = 200
REDACTED = "[redacted]"

# Read past each cut, so that a secret lying across it is still seen with its name.
SLACK = 4_000


class FailureClass(StrEnum):
    """Why an attempt failed; counted apart."""

    CONTENT = "content"
    SYSTEM = "system"
    THROTTLED = "throttled"
    DEADLOCK = "deadlock"
    SERIALIZATION = "serialization"
    CONNECTION = "connection"
    TIMEOUT = "timeout"
    LEASE_LOST = "lease_lost"
    STOPPED = "stopped"
    RESULT = "result"


FINAL = frozenset({FailureClass.CONTENT, FailureClass.STOPPED, FailureClass.RESULT})

# What no task can overrule: it was said by name, or by the queue itself.
FIXED: dict[type[BaseException], FailureClass] = {
    Bury: FailureClass.CONTENT,
    Retry: FailureClass.SYSTEM,  # throttled when it names a delay
    LeaseLostError: FailureClass.LEASE_LOST,
    JobLostError: FailureClass.LEASE_LOST,
    JobCancelledError: FailureClass.STOPPED,
    JobStoppedError: FailureClass.STOPPED,
    ResultError: FailureClass.RESULT,
}

# Content: the same call would fail again. Left out on purpose, so retried: ValueError and its UnicodeError
# (often a remote's passing garbage), KeyError, ImportError and ProgrammingError (a deploy under way),
# IntegrityError (often a lost race, which the next attempt finds settled), MemoryError.
CONTENT: tuple[type[BaseException], ...] = (
    django_exceptions.ObjectDoesNotExist,
    django_exceptions.MultipleObjectsReturned,
    django_exceptions.ValidationError,
    django_exceptions.SuspiciousOperation,
    django_exceptions.PermissionDenied,
    TypeError,
    AssertionError,
    PayloadError,
    OperationKeyConflictError,
    UnknownTaskError,
    JobNotFoundError,
    db.DataError,
)
# The nearest base class counts.
BY_TYPE: dict[type[BaseException], FailureClass] = {
    **dict.fromkeys(CONTENT, FailureClass.CONTENT),
    db.OperationalError: FailureClass.CONNECTION,  # without a sqlstate: the server never answered
    db.InterfaceError: FailureClass.CONNECTION,
    ConnectionError: FailureClass.CONNECTION,
    TimeoutError: FailureClass.TIMEOUT,  # also known as socket.timeout and asyncio.TimeoutError
}

# PostgreSQL manual, appendix A: a whole code, or the first two characters, its class. Other codes: system.
BY_SQLSTATE: dict[str, FailureClass] = {
    "40P01": FailureClass.DEADLOCK,
    "40001": FailureClass.SERIALIZATION,
    # connection exceptions, too many connections, shutdowns and starts, ended while idle
    **dict.fromkeys(("08", "53300", "57P01", "57P02", "57P03", "57P05", "25P03"), FailureClass.CONNECTION),
    # limits on a statement, a lock, a transaction
    **dict.fromkeys(("57014", "55P03", "25P04"), FailureClass.TIMEOUT),
    # data exceptions
    "22": FailureClass.CONTENT,
}


@dataclass(frozen=True, slots=True)
class Description:
    """What is stored of an exception: bounded, redacted, and without what PostgreSQL cannot hold."""

    class_path: str
    message: str
    traceback: str


def classify(
    exc: BaseException,
    *,
    retry_on: tuple[type[BaseException], ...] = (),
    bury_on: tuple[type[BaseException], ...] = (),
) -> FailureClass:
    """Return why the attempt failed.

    `retry_on` and `bury_on` are the task's; the class nearest to the exception's own wins, `retry_on` on a
    tie. A retried exception keeps its default class where that one is retried anyway, else it is a system
    failure.
    """
    fixed = _nearest(exc, FIXED)
    if fixed is not None:
        return _throttled_if_told(exc, fixed)
    nearest = next((kind for kind in classes(exc) if _holds(retry_on, kind) or _holds(bury_on, kind)), None)
    if nearest is not None and not _holds(retry_on, nearest):
        return FailureClass.CONTENT
    if is_a(exc, BaseExceptionGroup) and nearest is None:
        agreed = {classify(member, retry_on=retry_on, bury_on=bury_on) for member in members(exc)}
        return agreed.pop() if len(agreed) == 1 else FailureClass.SYSTEM
    default = _default_class(exc)
    return FailureClass.SYSTEM if nearest is not None and not is_retryable(default) else default


def is_retryable(failure_class: FailureClass) -> bool:
    """Say whether another attempt may help."""
    return failure_class not in FINAL


def _default_class(exc: BaseException) -> FailureClass:
    sqlstate = _sqlstate(exc)
    if sqlstate is not None:
        return BY_SQLSTATE.get(sqlstate) or BY_SQLSTATE.get(sqlstate[:2], FailureClass.SYSTEM)
    return _throttled_if_told(exc, _nearest(exc, BY_TYPE) or FailureClass.SYSTEM)


def _nearest(exc: BaseException, table: Mapping[type[BaseException], FailureClass]) -> FailureClass | None:
    return next((table[listed] for kind in classes(exc) for listed in table if listed is kind), None)


def _holds(kinds: tuple[type[BaseException], ...], kind: type) -> bool:
    """Compare by identity: a metaclass may define `__eq__` and `__hash__`, and raise there."""
    return any(listed is kind for listed in kinds)


def _throttled_if_told(exc: BaseException, failure_class: FailureClass) -> FailureClass:
    told = failure_class is FailureClass.SYSTEM and retry_after_seconds(exc) is not None
    return FailureClass.THROTTLED if told else failure_class


def _sqlstate(exc: BaseException) -> str | None:
    """Return the driver's sqlstate; Django's wrapper keeps the driver's exception as its cause."""
    for candidate in (exc, read(exc, "__cause__") if is_a(exc, db.Error) else None):
        sqlstate = read(candidate, "sqlstate")
        if is_a(sqlstate, str) and text(sqlstate):
            return text(sqlstate)
    return None


def describe(exc: BaseException, *, max_message: int = 1_000, max_traceback: int = 20_000) -> Description:
    """Return what may be stored of an exception; limits in characters.

    Control characters and lone surrogates are shown escaped, secrets replaced. The class path is that of the
    nearest base class that can be imported; where that is not the class itself, the message begins with the
    class's name.
    """
    kind = type(exc)
    base = next((base for base in classes(exc) if _is_importable(base)), Exception)
    message = (("" if base is kind else f"{_name(kind)}: ") + _text(exc))[: max_message + SLACK]
    lines = _cut_middle(_formatted(exc), max_traceback + 2 * SLACK)
    return Description(
        class_path=f"{base.__module__}.{base.__qualname__}",
        message=_cut_end(redact(storable(message)), max_message),
        traceback=_cut_middle(redact(storable(lines)), max_traceback),
    )


def _is_importable(kind: type) -> bool:
    """Say whether `module.name` finds the class again in another process; nested and local classes do not."""
    module, name = read(kind, "__module__"), read(kind, "__qualname__")
    if type(module) is not str or type(name) is not str:
        return False
    if module == "__main__" or len(module) + len(name) >= LONGEST_CLASS_PATH:
        return False
    names = read(sys.modules.get(module), "__dict__")
    return type(names) is dict and names.get(name) is kind and name.isidentifier()


def _name(kind: type) -> str:
    """Return the name of a class without the function that it was defined in."""
    name = read(kind, "__qualname__")
    return name.rpartition("<locals>.")[2][:LONGEST_CLASS_PATH] if type(name) is str else "a class without a name"


def _text(exc: BaseException) -> str:
    try:
        return text(str(exc))
    except BaseException as error:  # whatever it does, the failure is stored
        return f"(its __str__ raised {class_name(error)})"


def _formatted(exc: BaseException) -> str:
    try:
        return text("".join(traceback.format_exception(exc)))
    except BaseException as error:
        frames = "".join(traceback.format_tb(traceback_of(exc)))
        reason = f"(the traceback could not be formatted: {class_name(error)})"
        return f"{frames}{class_name(exc)}: {_text(exc)}\n{reason}"


def redact(text: str) -> str:
    """Replace secrets: URL passwords, values of telling names, bearer tokens, private keys, quoted rows.

    Each pattern takes time linear in the text. In doubt it replaces too much.
    """
    text = _PRIVATE_KEY.sub(REDACTED, text)
    text = _AFTER_SCHEME.sub(_without_password, text)
    text = _ROW.sub(rf"\g<1>{REDACTED}", text)
    text = _NAMED_VALUE.sub(rf"\g<1>{REDACTED}", text)
    return _CREDENTIALS.sub(rf"\g<1>{REDACTED}", text)


_PRIVATE_KEY = re.compile(
    r"-----BEGIN [^\n-]{0,40}PRIVATE KEY-----.*?(?:-----END [^\n-]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
_AFTER_SCHEME = re.compile(r"""(?<=://)[^\s"'<>]++""")
_CREDENTIALS = re.compile(r"\b([Bb]earer[ \t]++|BEARER[ \t]++|Basic[ \t]++)[\w.~+/=-]{6,}+")
# PostgreSQL quotes values of whole rows, and of keys with their column names at a distance.
_ROW = re.compile(r"((?:Failing row contains |Key \([^)\n]{1,500}+\)=)\()[^\n]*+")
_NAMED_VALUE = re.compile(
    r"""
    ( (?: (authorization|cookie)
        | passw(?:or)?d | passphrase | pwd | secret | token | credential | session
        | (?:api|access|private)[ _-]?key )
      [\w-]{0,40}+
      (?: [\])"'\\]{0,6}+ [ \t]{0,8}+ (?: =>? | :=? | > ) | \\{0,4}+["'][ \t]{0,8}+, )
      [ \t]{0,8}+ )
    (?: \[redacted\](?![^\s,;&)}\]'"])
      | [bru]{0,2}+ (?: \"{3} | '{3} ) [^\n]*+
      | [bru]{0,2}+ \\{0,4}+ (?: "(?:[^"\\\n]|\\[^\n])*+"? | '(?:[^'\\\n]|\\[^\n])*+'? )
      | [\[{(] [^\n]*+
      | (?(2) [^\n"']++ | \S++ ) )
    """,
    re.IGNORECASE | re.VERBOSE,
)


def _without_password(match: re.Match[str]) -> str:
    userinfo, at, rest = match[0].rpartition("@")
    user, colon, _ = userinfo.partition(":")
    return f"{user}:{REDACTED}@{rest}" if at and colon else match[0]


# Control characters but tab, line feed and carriage return.
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(9), 11, 12, *range(14, 32), 127)}


def storable(text: str) -> str:
    """Escape control characters and lone surrogates."""
    return text.translate(_ESCAPES).encode(errors="backslashreplace").decode()


def _cut_end(text: str, limit: int) -> str:
    marker = " [cut]"
    return text if len(text) <= limit else text[: max(0, limit - len(marker))] + marker[:limit]


def _cut_middle(text: str, limit: int) -> str:
    """Keep head and tail; the tail begins at a whole word, and never inside a key block."""
    if len(text) <= limit:
        return text
    marker = f"\n[... cut from {len(text):,} characters ...]\n"
    half = max(0, limit - len(marker)) // 2
    tail = text[len(text) - half :]
    words = re.search(r"\s", tail)
    tail = tail[words.end() :] if words else ""
    orphan = tail.find("-----END ")
    if orphan >= 0 and "-----BEGIN " not in tail[:orphan]:
        tail = tail[orphan:]
    return text[:half] + marker[:limit] + tail

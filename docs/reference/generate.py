"""Write the reference pages that the code knows best: settings, commands, exceptions, system checks.

    python docs/reference/generate.py

`tests/test_docs.py` fails while a page differs from what this makes of the code.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import django
from django.conf import settings as django_settings
from django.core.management import load_command_class
from django.core.management.base import BaseCommand

import pgqueue
from pgqueue import conf, exceptions, failures, refusals

HERE = Path(__file__).resolve().parent
PACKAGE = Path(pgqueue.__file__).resolve().parent
NOTICE = "<!-- Made from the code by docs/reference/generate.py: change it there. -->\n"

MORE_ABOUT_SETTINGS = {
    "lease_seconds": "How long the database waits for a silent worker before its jobs are taken over. No time limit.",
    "heartbeats_per_lease": "Renewals per lease; 2 at least. With 3, one late heartbeat loses nothing.",
    "concurrency": "Threads of a worker process.",
    "prefetch_seconds": "One per thread when jobs are long.",
    "poll_seconds": "Enqueues, due jobs and leases that run out wake the worker earlier.",
    "poll_without_listen_seconds": "Longest sleep while LISTEN is off, or its connection is lost.",
    "listen": "Whether workers hear of new jobs by LISTEN. Turn it off behind a transaction pooler, where it is deaf.",
    "notify": "Whether enqueueing processes wake workers, after the commit.",
    "max_attempts": "Failures after which a job is dead; a task and a call can say otherwise.",
    "max_lease_losses": "It is dead then.",
    "backoff_base_seconds": "Delay after the first failure, doubled after each further one; up to half is left off.",
    "backoff_cap_seconds": "Longest delay after a failure.",
    "max_payload_bytes": "Largest JSON of a job's arguments.",
    "max_result_bytes": "Largest JSON of a result; a job with a larger one is dead.",
    "claim_timeout_seconds": "Longest a statement of a claim, an ending or a takeover may take.",
    "heartbeat_timeout_seconds": "Longest a statement of a heartbeat may take.",
}
"""What the docstrings in `conf` leave to be said. A setting without a docstring needs its line here."""

OVERRIDES = """\
## For some jobs

Where the fourth column says so, `QUEUES` and `TASKS` give other values to the jobs of one queue or one task:

```python
PGQUEUE = {
    "MAX_ATTEMPTS": 8,
    "QUEUES": {"mail": {"MAX_ATTEMPTS": 3, "MAX_RUN_SECONDS": 60}},
    "TASKS": {"reports.tasks.yearly": {"MAX_RUN_SECONDS": 7200, "MAX_RESULT_BYTES": 1_000_000}},
}
```

What the code says (`@task(max_attempts=...)`, `using(max_attempts=...)`) comes first, then the setting of the task, of
the queue, of all jobs. So the settings of a task are for what its own decorator cannot say: functions of other
packages, and plain Django tasks. `MAX_ATTEMPTS` and `MAX_PAYLOAD_BYTES` are read where a job is enqueued, the others by
the worker."""

SAMPLES: dict[str, object] = {
    "path": "args[0]",
    "reason": "is of type Decimal, which would not come back from JSON",
    "advice": "pass str(value)",
    "size_bytes": 300_000,
    "limit_bytes": 262_144,
    "task": "shop.tasks.charge",
    "key": "charge:7",
    "job_id": 88201,
    "first": "shop.tasks.charge",
    "second": "shop.cards.charge",
    "fence": 4711,
    "problem": "PGQUEUE['LEASE_SECOND'] is not a setting.",
    "hint": "Did you mean 'LEASE_SECONDS'?",
    "seen": "requeue job 88201",
    "expected": "requeue job 88200",
    "verb": "requeu",
    "known": ("requeue", "cancel"),
    "name": "acme",
    "kinds": ("tenant", "task", "resource"),
}
"""Facts to build an error's message from, by the name of its parameter."""


def settings_page() -> str:
    """Return the table of settings."""
    docstrings = _field_docstrings()
    rows = []
    for field in dataclasses.fields(conf.Settings):
        words = " ".join(filter(None, (docstrings.get(field.name), MORE_ABOUT_SETTINGS.get(field.name))))
        assert words, f"Nothing says what {field.name} means: give it a docstring in conf.py, or a line above."
        key, default = field.name.upper(), getattr(conf.Settings(), field.name)
        kind = "dict" if isinstance(default, dict) else field.type
        narrower = "yes" if key in conf.OVERRIDABLE else ""
        rows.append((f"`{key}`", f"`{kind}`", f"`{default!r}`", narrower, words))
    return _page(
        "Settings",
        "All keys of one dict, `PGQUEUE = {...}`, in Django's settings. Each may be left out, and so may the dict.\n"
        "`manage.py check` finds misspelt keys and values that cannot be used; so does the first use.\n"
        "Numbers are finite and above zero; units are in the names.",
        _table(("setting", "type", "default", "for some jobs", "means"), rows),
        OVERRIDES,
    )


def commands_page() -> str:
    """Return the options of every command."""
    common = {action.dest for action in _parser(BaseCommand(), "any")._actions}
    parts = []
    for path in sorted((PACKAGE / "management" / "commands").glob("[!_]*.py")):
        command = load_command_class("pgqueue", path.stem)
        rows = [
            (_spelling(action), _default(action), _sentence(action))
            for action in _parser(command, path.stem)._actions
            if action.dest not in common and action.help != argparse.SUPPRESS
        ]
        parts += [f"## {path.stem}", command.help, _table(("argument", "default", "means"), rows)]
    return _page("Commands", "Called with `python manage.py`. Django's own options are left out.", *parts)


def exceptions_page() -> str:
    """Return what an exception does to a job, and every error of the project."""
    return _page(
        "Exceptions",
        "## What an exception does to a job",
        "The first row that fits decides; of a class and its base class, the nearer one counts. *Again* is the state\n"
        "`retrying`, until the attempts are used up; then the job is `dead`. *Never* is `dead` at once. The failure\n"
        "class is stored with the attempt, in `pgqueue_attempt.failure_class`.",
        _table(("the task raises", "tried", "class"), _classified()),
        "## The project's errors",
        "They are in `pgqueue.exceptions`, those of operators' requests in `pgqueue.refusals`. Each has its facts as\n"
        "attributes. Messages hold no values of arguments and no credentials.",
        *_errors(),
    )


def checks_page() -> str:
    """Return the system checks."""
    rows = sorted(_checks())
    return _page(
        "System checks",
        "`manage.py check` runs them. Silence one with Django's `SILENCED_SYSTEM_CHECKS`.",
        _table(("id", "level", "what it checks", "hint"), rows),
    )


PAGES: dict[str, Callable[[], str]] = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "exceptions.md": exceptions_page,
    "checks.md": checks_page,
}


def _page(title: str, *parts: str) -> str:
    return "\n\n".join((f"# {title}", NOTICE.strip(), *parts)) + "\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(cell.replace("|", "\\|") for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _field_docstrings() -> dict[str, str]:
    """Return the texts that stand under the fields of `conf.Settings`."""
    (tree,) = ast.parse(inspect.getsource(conf.Settings)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for field, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            assert isinstance(field.target, ast.Name)
            found[field.target.id] = " ".join(str(after.value.value).split()).rstrip(".") + "."
    return found


def _parser(command: BaseCommand, name: str) -> argparse.ArgumentParser:
    return command.create_parser("manage.py", name)


def _spelling(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.dest.upper()}`"
    takes = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return f"`{action.option_strings[-1]}{takes}`"


def _default(action: argparse.Action) -> str:
    """Name the setting rather than its value."""
    if any(action.dest == field.name for field in dataclasses.fields(conf.Settings)):
        return f"`{action.dest.upper()}`"
    if action.required:
        return "required"
    return "none" if action.default in (None, "", [], False) else f"`{action.default}`"


def _sentence(action: argparse.Action) -> str:
    if action.choices and not action.help:
        return f"One of {', '.join(f'`{choice}`' for choice in action.choices)}."
    return action.help or ""


def _classified() -> Iterator[tuple[str, str, str]]:
    for kind, failure_class in failures.FIXED.items():
        yield _named(kind), _tried(failure_class), failure_class
    yield "a class of the task's `bury_on`", "never", failures.FailureClass.CONTENT
    yield "a class of the task's `retry_on`", "again", "as below, else `system`"
    yield "an exception group", "as its members, where they agree; else again", "theirs, else `system`"
    for state, failure_class in failures.BY_SQLSTATE.items():
        code = f"SQLSTATE {state}" if len(state) == 5 else f"SQLSTATE class {state}"
        yield f"a database error with {code}", _tried(failure_class), failure_class
    for kind, failure_class in failures.BY_TYPE.items():
        yield _named(kind), _tried(failure_class), failure_class
    yield "anything with a Retry-After", "again, no sooner than it says", failures.FailureClass.THROTTLED
    yield "anything else", "again", failures.FailureClass.SYSTEM


def _named(kind: type) -> str:
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"`{module}{kind.__qualname__}`"


def _tried(failure_class: failures.FailureClass) -> str:
    return "again" if failures.is_retryable(failure_class) else "never"


def _errors() -> Iterator[str]:
    pages = (exceptions, refusals)
    for kind in (value for page in pages for value in vars(page).values() if _is_defined_in(page, value)):
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        yield f"### {kind.__name__}"
        yield f"A subclass of {bases}. {inspect.cleandoc(kind.__doc__ or '')}"
        names = inspect.signature(kind).parameters.keys() if inspect.isfunction(kind.__str__) else None
        if names is not None and names <= SAMPLES.keys():
            yield "For example:"
            yield f"> {kind(*(SAMPLES[name] for name in names))}"


def _is_defined_in(page: object, value: object) -> bool:
    return inspect.isclass(value) and value.__module__ == vars(page)["__name__"]


def _checks() -> Iterator[tuple[str, str, str, str]]:
    """Find `checks.Error(..., id="pgqueue.E001")` and the like, with the docstring of the function around."""
    for path in PACKAGE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                yield from _checks_in(function)


def _checks_in(function: ast.FunctionDef) -> Iterator[tuple[str, str, str, str]]:
    for node in ast.walk(function):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        id = _literal(given.get("id"))
        if id.startswith("pgqueue."):
            words = (ast.get_docstring(function) or "").partition("\n")[0].replace(f" ({id})", "")
            yield f"`{id}`", node.func.attr.lower(), words, _literal(given.get("hint")) or "each fault has its own"


def _literal(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def main() -> None:
    """Write every page that changed."""
    django_settings.configure(INSTALLED_APPS=["pgqueue"])
    django.setup()
    for name, page in PAGES.items():
        path = HERE / name
        text = page()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


if __name__ == "__main__":
    main()

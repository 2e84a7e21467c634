"""One task per recovery policy; what its body does, the test says in the same process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pgqueue import task

script: dict[str, Callable[[Any], Any]] = {}
"""The body of the next run, by the name that the job is given."""


class Remote:
    """A remote system within reach: what it was asked, by key, and how it answers."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: list[Any] = []

    def __call__(self, key: str) -> Any:
        self.asked.append(key)
        answer = self.answers.pop(0) if self.answers else {"id": f"r{len(self.asked)}"}
        if isinstance(answer, BaseException):
            raise answer
        return answer


@task(recovery="manual", takes_context=True, max_attempts=3, backoff_seconds=0.001)
def manual(context: Any, name: str = "run") -> Any:
    return script[name](context)


@task(recovery="idempotent", takes_context=True, max_attempts=3, backoff_seconds=0.001)
def idempotent(context: Any, name: str = "run") -> Any:
    return script[name](context)


@task(takes_context=True, max_attempts=3, backoff_seconds=0.001)
def undeclared(context: Any, name: str = "run") -> Any:
    return script[name](context)


@task(takes_context=True, max_attempts=3, backoff_seconds=0.001)
async def undeclared_later(context: Any, name: str = "run") -> Any:
    return await script[name](context)


@task(recovery="probe", takes_context=True, max_attempts=3, backoff_seconds=0.001)
def probed(context: Any, name: str = "run") -> Any:
    return script[name](context)


@probed.probe
def ask(context: Any, effect: Any) -> Any:
    return script["ask"](context, effect)


@task(recovery="transactional", takes_context=True, max_attempts=3, backoff_seconds=0.001)
def transactional(context: Any, name: str = "run") -> Any:
    return script[name](context)


@task
def mourn(job_id: int) -> int:
    return job_id


@task(takes_context=True, max_attempts=1, on_dead=mourn)
def mourned(context: Any, name: str = "run") -> Any:
    return script[name](context)


@task(recovery="manual", takes_context=True, max_attempts=3, backoff_seconds=0.001)
async def manual_later(context: Any, name: str = "run") -> Any:
    return await script[name](context)


@task(settle="each", takes_context=True)
def settled_each(context: Any, name: str = "run") -> Any:
    return script[name](context)


@task(settle="each", takes_context=True)
async def settled_each_later(context: Any, name: str = "run") -> Any:
    return await script[name](context)


@task
def refund(job_id: int, effect: str, operation_key: str, remote_reference: str) -> list[Any]:
    """Undo a charge: tells what it was given."""
    return [job_id, effect, operation_key, remote_reference]


@task(recovery="manual", takes_context=True, compensation=refund)
def charge(context: Any, card: str = "4242") -> None:
    """Charge a card; whether that happened, a person finds out."""
    context.effect("sms", lambda key: None)

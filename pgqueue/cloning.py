"""Other arguments for a job that is run again as a new one: checked before anything is written, and not on record."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from . import conf, registry
from .compat import Task
from .exceptions import PayloadError, PayloadTooLargeError, UnknownTaskError
from .payloads import decode, digest, encode_arguments
from .refusals import VerbParamsError

ARGS, KWARGS = "new_args", "new_kwargs"


def split(verb: str, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Part the params of a request from the arguments that are among them: a digest stands for those on record.

    Where either of `new_args` (a list) and `new_kwargs` (an object) is given, the new job has these arguments and no
    others. Raise `VerbParamsError` for what no job can be given.
    """
    told = {name: value for name, value in params.items() if name not in (ARGS, KWARGS)}
    if len(told) == len(params):
        return told, {}
    args, kwargs = params.get(ARGS, []), params.get(KWARGS, {})
    if not isinstance(args, list):
        raise VerbParamsError(verb, ARGS, "is no list: give the positional arguments as a JSON list")
    if not isinstance(kwargs, dict):
        raise VerbParamsError(verb, KWARGS, "is no object: give the named arguments as a JSON object")
    try:
        args_text, kwargs_text = encode_arguments(args, kwargs, max_bytes=conf.current().max_payload_bytes)
    except (PayloadError, PayloadTooLargeError) as error:
        raise VerbParamsError(verb, ARGS, f"cannot be stored: {error}") from error
    return {**told, "arguments": digest(args_text, kwargs_text)}, {"args": args_text, "kwargs": kwargs_text}


def refuse_misfit(verb: str, task: str, payload: Mapping[str, Any]) -> None:
    """Raise `VerbParamsError` for arguments that the task does not take. A task that nobody here knows takes any."""
    try:
        known: Task[..., Any] = registry.find_or_discover(task)
    except UnknownTaskError:
        return
    context = [None] if known.takes_context else []
    try:
        bound = (*context, *(decode(payload["args"]) or []))
        inspect.signature(known.func).bind(*bound, **(decode(payload["kwargs"]) or {}))
    except TypeError as error:
        raise VerbParamsError(verb, ARGS, f"does not fit the task {task}: {error}") from error

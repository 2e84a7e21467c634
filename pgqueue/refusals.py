"""Errors of operators' requests that cannot be understood: nothing was done, and nothing recorded."""

from .exceptions import LONGEST_NAME, PGQueueError, shown


class IdempotencyKeyReusedError(PGQueueError):
    """An operator's request whose key already stands for another request.

    `seen` describes the request that came now, `expected` the one on record.
    """

    def __init__(self, key: str, seen: str, expected: str) -> None:
        super().__init__(key, seen, expected)
        self.key = key
        self.seen = seen
        self.expected = expected

    def __str__(self) -> str:
        return (
            f"Idempotency key {shown(self.key)} was used for {shown(self.expected)} and now comes with "
            f"{shown(self.seen)}: use a new key for a new request."
        )


class UnknownVerbError(PGQueueError, ValueError):
    """An operator's verb that does not exist; `known` are those that do."""

    def __init__(self, verb: str, known: tuple[str, ...]) -> None:
        super().__init__(verb, known)
        self.verb = verb
        self.known = known

    def __str__(self) -> str:
        return f"There is no verb {shown(self.verb)}: use one of {', '.join(self.known)}."


class ReasonMissingError(PGQueueError, ValueError):
    """An operator's action without a reason; nothing was done and nothing recorded."""

    def __init__(self, verb: str) -> None:
        super().__init__(verb)
        self.verb = verb

    def __str__(self) -> str:
        return f"{shown(self.verb)} needs a reason: say why, for whoever reads the audit log later."


class VerbParamsError(PGQueueError, ValueError):
    """A param of an operator's verb that cannot be used; nothing was done and nothing recorded."""

    def __init__(self, verb: str, param: str, problem: str) -> None:
        super().__init__(verb, param, problem)
        self.verb = verb
        self.param = param
        self.problem = problem.rstrip(".")

    def __str__(self) -> str:
        return f"{shown(self.verb)}: the param {shown(self.param)} {self.problem}."


class LimitNameError(PGQueueError, ValueError):
    """No limit can have this name, or not the one that the verb sets; `kinds` are those it takes."""

    def __init__(self, name: str, kinds: tuple[str, ...]) -> None:
        super().__init__(name, kinds)
        self.name = name
        self.kinds = kinds

    def __str__(self) -> str:
        return (
            f"{shown(self.name)} names nothing that this verb bounds: give a kind and a name of at most "
            f"{LONGEST_NAME} characters, as in tenant:acme; the kind is one of {', '.join(self.kinds)}."
        )

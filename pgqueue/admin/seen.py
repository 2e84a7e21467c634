"""What a confirm page showed, signed, so that its POST can be held against it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from django.core import signing
from django.http import HttpRequest

from ..verbs import Verb

SALT = "pgqueue.admin.confirm"
CONFIRM_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Seen:
    """What a confirm page showed. Its key makes a second submit of the same page a replay."""

    user: str
    verb: str
    target: str
    version: int
    facts: list[str]
    key: str

    def sign(self) -> str:
        """Return the hidden field's value."""
        return str(signing.dumps(asdict(self), salt=SALT))

    @classmethod
    def read(cls, token: str) -> Seen | None:
        """Return what a posted page showed; None when it is too old, or none of ours."""
        try:
            return cls(**signing.loads(token, salt=SALT, max_age=CONFIRM_SECONDS))
        except (signing.BadSignature, TypeError):  # TypeError: signed by another version of this class.
            return None

    def is_of(self, request: HttpRequest, verb: Verb, target: str) -> bool:
        """Say whether it was shown to this user, about this verb and target."""
        return (self.user, self.verb, self.target) == (str(request.user.pk), verb.name, target)

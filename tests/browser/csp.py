"""The policy that the console must live with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' data:"
)


def policy(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Send the policy with every page."""

    def middleware(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = POLICY
        return response

    return middleware

"""Filters beside the list of jobs: none asks the jobs themselves what there is."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from ..states import State
from .marks import both
from .search import in_state
from .words import state_in_full, state_words


class StateFilter(admin.SimpleListFilter):
    """Jobs in one state; the words are known, so that nothing is counted to offer them."""

    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return every state."""
        # Unfold shows the choices as attributes too, where markup would end the tag.
        words = state_in_full if apps.is_installed("unfold") else _marked
        return [(state.value, words(state.value)) for state in State]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep jobs of the chosen state."""
        if self.value() is None:
            return queryset
        state = self.value()
        return queryset.filter(in_state(state)) if state in list(State) else queryset.none()


class QueueFilter(admin.SimpleListFilter):
    """Jobs of one queue; the names come from the table of queues and a walk over an index."""

    title = _("queue")
    parameter_name = "queue"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        """Return the queues that have a row or unfinished jobs."""
        return [(queue.name, queue.name) for queue in model_admin.queues_of(request)]

    def has_output(self) -> bool:
        """Say that it counts: Django drops a filter without choices, and all jobs would match."""
        return True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep jobs of the chosen queue."""
        return queryset if self.value() is None else queryset.filter(queue=self.value())


def _marked(state: str) -> Any:
    return both(state_words(state), state)

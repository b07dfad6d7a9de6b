"""The filters of the list of locks, and their query strings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, cast, get_args

from django.http import QueryDict

from django_tasklock.admin.base import parse_offset, query_string
from django_tasklock.backends.contract.lists import Order, Query, Which
from django_tasklock.operations.values import DEAD, LockState

ORDERS: Final[dict[str, tuple[Order, bool]]] = {
    "": ("age", True),
    "-age": ("age", False),
    "left": ("left", False),
    "-left": ("left", True),
}
"""The orders by their query parameter. By default the longest held come first."""
_STATES_BY_EXPIRY: Final = frozenset(get_args(Which)) - {"live"} | {DEAD}


@dataclass(frozen=True)
class Filters:
    """The query string of the list. Unknown and invalid parameters are ignored."""

    state: str = ""
    """``dead``, or the state of the lease."""
    q: str = ""
    task: str = ""
    waiting: bool = False
    order: str = ""
    start: int = 0

    @classmethod
    def read(cls, data: QueryDict) -> Filters:
        """Read the filters from a query string, or from the form that a page sent along."""
        state, order, start = (data.get(key, "") for key in ("state", "o", "from"))
        return cls(
            state=state if state in _STATES_BY_EXPIRY else "",
            q=data.get("q", "").strip(),
            task=data.get("task", "").strip(),
            waiting=data.get("waiting", "") == "1",
            order=order if order in ORDERS and state not in _STATES_BY_EXPIRY else "",
            start=parse_offset(start),
        )

    @property
    def is_search(self) -> bool:
        """Whether there is a filter besides the state; then each page is a search through some of the locks."""
        return bool(self.q or self.task or self.waiting)

    @property
    def sortable(self) -> bool:
        """Whether the list has several orders; all but the list of live locks are sorted by expiry."""
        return self.state not in _STATES_BY_EXPIRY

    @property
    def dead(self) -> bool:
        """Whether only locks are listed whose holder's process has ended."""
        return self.state == DEAD

    def query(self, limit: int) -> Query:
        """Return the query for ``operations.list_locks``."""
        order, descending = ORDERS[self.order]
        if not self.sortable:
            order, descending = "expiry", self.state == LockState.ORPHANED  # the latest expiry first
        return Query(
            which="live" if self.dead else cast(Which, self.state or "live"),
            order=order,
            descending=descending,
            text=self.q,
            task=self.task,
            waiting=self.waiting,
            offset=self.start,
            limit=limit,
        )

    def to_query_string(self, **changes: Any) -> str:
        """Return the query string with these changes; without ``start`` it is that of the first page."""
        return query_string(dict(replace(self, **{"start": 0, **changes}).items()))

    def items(self) -> list[tuple[str, str]]:
        """Return the parameters, for a query string or for the hidden fields of a form."""
        return [
            ("state", self.state),
            ("q", self.q),
            ("task", self.task),
            ("waiting", "1" if self.waiting else ""),
            ("o", self.order),
            ("from", str(self.start) if self.start else ""),
        ]

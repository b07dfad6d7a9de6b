"""What a reader of the list asked for, and the addresses of what they may ask for next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, cast, get_args

from django.http import QueryDict

from django_tasklock.admin.base import offset, query_string
from django_tasklock.backends.contract.queries import Order, Query, Which
from django_tasklock.operations.values import LockState

ORDERS: Final[dict[str, tuple[Order, bool]]] = {
    "": ("age", True),
    "-age": ("age", False),
    "left": ("left", False),
    "-left": ("left", True),
}
"""By their words in addresses. The longest held come first unless something else is asked for."""
_BY_EXPIRY: Final = frozenset(get_args(Which)) - {"live"}


@dataclass(frozen=True)
class Filters:
    """The query string of the list. Unknown and senseless parameters are left out."""

    state: str = ""
    q: str = ""
    task: str = ""
    waiting: bool = False
    order: str = ""
    start: int = 0

    @classmethod
    def read(cls, data: QueryDict) -> Filters:
        """Read the filters from an address, or from the form that a page sent along."""
        state, order, start = (data.get(key, "") for key in ("state", "o", "from"))
        return cls(
            state=state if state in _BY_EXPIRY else "",
            q=data.get("q", "").strip(),
            task=data.get("task", "").strip(),
            waiting=data.get("waiting", "") == "1",
            order=order if order in ORDERS and state not in _BY_EXPIRY else "",
            start=offset(start),
        )

    @property
    def narrowed(self) -> bool:
        """Whether more than the state was asked for: then only a part of the locks is looked through at a time."""
        return bool(self.q or self.task or self.waiting)

    @property
    def sortable(self) -> bool:
        """Whether the list can be had in several orders: a part of the live locks is in the order of expiry."""
        return self.state not in _BY_EXPIRY

    def query(self, limit: int) -> Query:
        """Return these filters as the query that ``operations.list_locks`` takes."""
        order, descending = ORDERS[self.order]
        if not self.sortable:
            order, descending = "expiry", self.state == LockState.ORPHANED  # what lapsed last comes first
        return Query(
            which=cast(Which, self.state or "live"),
            order=order,
            descending=descending,
            text=self.q,
            task=self.task,
            waiting=self.waiting,
            offset=self.start,
            limit=limit,
        )

    def address(self, **changes: Any) -> str:
        """Return the query string with these changes; back to the first page unless ``start`` is one of them."""
        new = replace(self, **{"start": 0, **changes})
        return query_string(
            {
                "state": new.state,
                "q": new.q,
                "task": new.task,
                "waiting": "1" if new.waiting else "",
                "o": new.order,
                "from": str(new.start) if new.start else "",
            }
        )

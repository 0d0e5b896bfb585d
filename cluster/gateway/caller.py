"""The one whose request this is: a name from the configuration, and what the request holds of its limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Permit(Protocol):
    """What a request holds of its key's limits."""

    async def reserve(self, tokens: int) -> None: ...

    async def close(self, used_tokens: int) -> None: ...


@dataclass(slots=True)
class Caller:
    """Lives as long as one HTTP request. `session` is what the caller calls the conversation that it belongs to.
    `headers` go out with the response; `used_tokens` are those of the prompts that were begun and of the answers that
    were sent."""

    name: str
    session: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    permit: Permit | None = None
    used_tokens: int = 0
    most_urgent: int | None = None

    def priority(self, wanted: int) -> int:
        """What counts of the priority that the caller wants."""
        return wanted if self.most_urgent is None else max(wanted, self.most_urgent)

    async def reserve(self, tokens: int) -> None:
        """Raises ApiError if the caller may not use so many tokens now."""
        if self.permit is not None:
            await self.permit.reserve(tokens)

    async def leave(self) -> None:
        if self.permit is not None:
            await self.permit.close(self.used_tokens)

"""How many tokens each tenant may still be served: an account that fills evenly over a minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MINUTE_S = 60.0


@dataclass
class _Account:
    n_tokens: float
    filled_at: float


class Allowances:
    """Accounts of tokens, one for each tenant.

    A request is taken as long as the account is not empty, and charged as it is served: it may overdraw the
    account, and the next one waits the longer.

    Args:
        tokens_per_minute: what an account gains in a minute, and what it holds at most; None for no limit.
        clock: seconds, monotonic.
    """

    def __init__(self, tokens_per_minute: int | None, clock: Callable[[], float]) -> None:
        self._per_minute = tokens_per_minute
        self._clock = clock
        self._accounts: dict[str | None, _Account] = {}

    def charge(self, tenant: str | None, n_tokens: int) -> None:
        """``tenant`` was served ``n_tokens``."""
        if self._per_minute is not None:
            self._account(tenant, self._per_minute).n_tokens -= n_tokens

    def wait_s(self, tenant: str | None) -> float:
        """How long until the next request of ``tenant`` is taken, in seconds; 0 for at once."""
        if self._per_minute is None:
            return 0.0
        account = self._account(tenant, self._per_minute)
        return max(0.0, (1.0 - account.n_tokens) * MINUTE_S / self._per_minute)

    def _account(self, tenant: str | None, per_minute: int) -> _Account:
        now = self._clock()
        account = self._accounts.setdefault(tenant, _Account(per_minute, now))
        gained = (now - account.filled_at) * per_minute / MINUTE_S
        account.n_tokens = min(account.n_tokens + gained, float(per_minute))
        account.filled_at = now
        return account

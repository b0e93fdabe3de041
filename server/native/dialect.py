"""The endpoints of no other dialect, as the app takes them in."""

from __future__ import annotations

from server.http.dialect import Dialect
from server.native import metrics, slots, stats, tokens, travel
from server.native.slots_schema import ForkRequest
from server.native.tokens_schema import DetokenizeRequest, TokenizeRequest
from server.native.travel_schema import ExportRequest, MissingRequest

NATIVE = Dialect(
    routers=(tokens.router, travel.router, slots.router, metrics.router, stats.router),
    bodies=(TokenizeRequest, DetokenizeRequest, ForkRequest, ExportRequest, MissingRequest),
)

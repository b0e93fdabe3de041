"""The endpoints of no other dialect, as the app takes them in."""

from __future__ import annotations

from server.http.dialect import Dialect
from server.native import metrics, slots, stats, travel
from server.native.slots_schema import ForkRequest
from server.native.travel_schema import ExportRequest, MissingRequest

NATIVE = Dialect(
    routers=(travel.router, slots.router, metrics.router, stats.router),
    bodies=(ForkRequest, ExportRequest, MissingRequest),
)

"""When Python's cyclic garbage collector runs in a server process: every switch of it, in one place.

A server allocates nearly all of its long-lived objects (modules, configurations, protobuf descriptors) while it starts,
and few cycles afterwards. The collector is therefore used in three phases:

1. `pause` before the server's modules are imported. What they create stays alive, and the collector would traverse it
   again and again: each import would become slower.
2. `resume` after the modules for serving are imported and while guests start. One full collection happens here,
   because this process is idle until the guests are ready.
3. `settle` once all ports are open. Everything alive is frozen: a later full collection does not traverse it, and so
   does not stop all requests for tens of milliseconds. The youngest generation is collected less often, since most
   objects of a request are freed by reference counting. The middle one is collected after five of these: one
   collection traverses all that was allocated since the last, and everybody waits for it (200,000 objects, of a client
   that opens 8,000 streams, took 60 to 100 ms).
"""

from __future__ import annotations

import gc

_THRESHOLDS = (10_000, 5, 80)


def pause() -> None:
    """Stop automatic collections."""
    gc.disable()


def resume() -> None:
    """Collect once, then allow automatic collections."""
    gc.collect()
    gc.enable()


def settle() -> None:
    """Exempt everything that is alive now from further collections, and collect less often."""
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)

"""Where threads are seen to wait for each other, under any interpreter: run as `python blocked_threads_check.py STUBS`."""

import queue
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, sys.argv[1])

from naiad_stub.blocked_threads import are_all_blocked


def becomes(expected, waiting):
    """Whether a thread of its own, which counts as waiting itself, comes to see that."""
    deadline = time.monotonic() + (30 if expected else 0.3)
    while time.monotonic() < deadline:
        if are_all_blocked({*waiting, threading.get_ident()}) is expected:
            if expected:
                return True
        elif not expected:
            return False
        time.sleep(0.005)
    return not expected


def check(name, wait, expected):
    """Wait in the main thread as *wait* does, until what it waits for comes, and look at it from another meanwhile."""
    seen = []
    gate, has_begun = threading.Event(), threading.Event()

    def look():
        has_begun.wait()  # starting a thread is waiting for it, too
        seen.append(becomes(expected, ()))
        gate.set()

    looker = threading.Thread(target=look)
    looker.start()
    has_begun.set()
    wait(gate, looker)
    looker.join()
    assert seen == [True], name


def in_queue(gate, looker):
    items = queue.Queue()
    feeder = threading.Thread(target=lambda: (gate.wait(), items.put(1)))
    feeder.start()
    items.get()
    feeder.join()


def in_pool(gate, looker):
    with ThreadPoolExecutor(3) as pool:
        pool.submit(gate.wait).result()


def asleep(gate, looker):
    while not gate.is_set():
        time.sleep(0.01)


check("event", lambda gate, looker: gate.wait(), True)
check("join", lambda gate, looker: looker.join(), True)
check("queue", in_queue, True)
check("pool", in_pool, True)
check("event with a limit", lambda gate, looker: gate.wait(20), False)
check("join with a limit", lambda gate, looker: looker.join(20), False)
check("asleep", asleep, False)
print("ok")

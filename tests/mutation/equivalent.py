"""Mutants that no test can kill, as they behave as the original does.

The key is what `Mutant.identity` returns: file, function, what is there, and what the mutant has.
"""

from __future__ import annotations

_SCAN = "platform/naiad/protocol/strings.py"
_JSON = "platform/naiad/frontends/kserve_http/json_tensors.py"
_SCHEDULING = "platform/naiad/engine/scheduling"
_STALE = "it decides when deadlines of what has left are removed, and until then they are skipped"
_STALE_LIMIT = (
    ("{0} > 2 * {1} + 64", "{0} >= 2 * {1} + 64"),
    ("2 * {1} + 64", "2 * {1} - 64"),
    ("2 * {1} + 64", "2 * {1} + 65"),
    ("2 * {1}", "2 + {1}"),
    ("2 * {1}", "3 * {1}"),
)
_IN_FLIGHT = "platform/naiad/engine/serving/requests_in_flight.py"
_DORMANT = "platform/naiad/engine/serving/dormant.py"
_PROCESSES = "platform/naiad/server/processes"
_NUMBERED = "numbers only have to differ from each other, and from 0"
_NO_INSTANCE = "in a process without instances, it does not matter how many requests there are"
_EXACT_TIME = "no clock stands still at exactly that time"
_SLICED = "both ways make the same of it; the limit is where slices are worth their cost"
_GUESSES = "it decides only which guess is tried next, and every guess is verified: the count is the same"

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "platform/naiad/protocol/request_plan.py",
        "RequestPlan._check_input",
        "default=0",
        "default=1",
    ): "the minimum is only compared with 0, and neither is less",
    (_SCAN, "_equal_lengths", "rest < _PREFIX", "rest <= _PREFIX"): (
        "a length without bytes behind it is a run of one element, which is too short for this guess"
    ),
    (_SCAN, "_equal_lengths", "lengths[0]", "lengths[1]"): _GUESSES,
    (_SCAN, "scan_strings", "len(data) < _VECTOR_FROM", "len(data) <= _VECTOR_FROM"): (
        "both ways count alike; the limit is where one becomes faster"
    ),
    (_SCAN, "scan_steps", "scan.elements - before >= _MIN_RUN", "scan.elements - before > _MIN_RUN"): _GUESSES,
    (_SCAN, "scan_steps", "_WALKED_PER_STEP * 16", "_WALKED_PER_STEP + 16"): _GUESSES,
    (_SCAN, "scan_steps", "walked * 2", "walked * 3"): _GUESSES,
    **{
        (f"{_SCHEDULING}/{file}.py", function, before.format(kept, live), after.format(kept, live)): _STALE
        for file, function, kept, live in (
            ("dynamic/queue", "WaitingQueue._add_deadline", "len(self._deadlines)", "len(self._entries)"),
            ("sequences/backlog", "Backlog._remove_stale_expiries", "len(self._expiries)", "len(self._sequences)"),
        )
        for before, after in _STALE_LIMIT
    },
    (f"{_SCHEDULING}/dynamic/batch_rule.py", "BatchRule.decide", "size > candidate.size", "size >= candidate.size"): (
        "a batch of a preferred size does not wait"
    ),
    (
        f"{_SCHEDULING}/dynamic/batch_rule.py",
        "BatchRule._candidate",
        "total > self.largest",
        "total >= self.largest",
    ): "the request makes the largest preferred size, or its shape ends the batch: both ways send the same",
    ("platform/naiad/engine/ensembles/step.py", "StepRequest.__init__", "(0, 0)", "(1, 0)"): (
        "`submit` sets it before a response can come"
    ),
    (
        "platform/naiad/engine/ensembles/execution.py",
        "EnsembleExecution.stop",
        "loop.time() < deadline",
        "loop.time() <= deadline",
    ): "no loop's clock stands still at exactly that time",
    (_IN_FLIGHT, "depth_for", "execution_ns >= _DEPTH_WINDOW_NS", "execution_ns > _DEPTH_WINDOW_NS"): (
        "a window divided by itself is one, too"
    ),
    (_IN_FLIGHT, "depth_for", "execution_ns <= _MAX_DEPTH_PACE_NS", "execution_ns < _MAX_DEPTH_PACE_NS"): (
        "the window divided by that is the largest depth, too"
    ),
    (
        _IN_FLIGHT,
        "RequestsInFlight.on_batch_done",
        "pace <= _MAX_DEPTH_PACE_NS",
        "pace < _MAX_DEPTH_PACE_NS",
    ): "`depth_for` gives the same",
    (
        _IN_FLIGHT,
        "RequestsInFlight.on_batch_done",
        "depth > self.lanes",
        "depth >= self.lanes",
    ): "both are the same then",
    (_IN_FLIGHT, "RequestsInFlight.on_batch_done", "took > pace", "took >= pace"): "both are the same then",
    (
        _DORMANT,
        "DormantVersion.__init__",
        "self._reason = ''",
        "pass",
    ): "it is read once a load has failed, which sets it",
    (_DORMANT, "DormantVersion.__init__", "self._failed_until = 0.0", "self._failed_until = 1.0"): (
        "the clock of a running system is past both"
    ),
    ("stubs/naiad_stub/memo.py", "Memo.__init__", "super().__init__()", "pass"): "a dict's constructor adds nothing",
    ("stubs/naiad_stub/queries.py", "_PendingReply.__init__", "self.is_ok = False", "pass"): (
        "a reply sets it before anybody reads it"
    ),
    (
        "stubs/naiad_stub/layout.py",
        "pack",
        "len(encoded) > wire.MAX_ID_BYTES",
        "len(encoded) >= wire.MAX_ID_BYTES",
    ): "a name of just that length is cut to itself",
    (_JSON, "is_long", "count >= _LONG_COUNT", "count > _LONG_COUNT"): _SLICED,
    (
        "platform/naiad/frontends/kserve_http/generate.py",
        "GenerateStreamSink._on_failed",
        "self._job = None",
        "pass",
    ): "the stream ends there, and nothing looks at its job any more",
    (f"{_PROCESSES}/calls.py", "RemoteCalls.__init__", "itertools.count(1)", "itertools.count(2)"): _NUMBERED,
    (
        f"{_PROCESSES}/dealing.py",
        "ConnectionReceiver.receive",
        "socket.recv_fds(self._link, _PACKET, 1)",
        "socket.recv_fds(self._link, _PACKET, 2)",
    ): "a packet has one descriptor",
    **{
        (f"{_PROCESSES}/link.py", "Link.__init__", "self._long_filled = 0", after): "it is set together with `_long`"
        for after in ("pass", "self._long_filled = 1")
    },
    (
        f"{_PROCESSES}/link.py",
        "Link.send_parts",
        "sum(map(len, parts)) <= LONG_FRAME",
        "sum(map(len, parts)) < LONG_FRAME",
    ): "both ways send the same; the limit is where joining costs too much",
    (
        f"{_PROCESSES}/link.py",
        "Link.receive",
        "select.POLLOUT if self._outgoing else 0",
        "select.POLLOUT if self._outgoing else 1",
    ): "POLLIN, which is set in any case, is 1",
    (
        f"{_PROCESSES}/own_replicas.py",
        "OwnReplica.better_process",
        "self._table.better_process(self._row, 0, 0)",
        "self._table.better_process(self._row, 1, 0)",
    ): _NO_INSTANCE,
    (
        f"{_PROCESSES}/own_replicas.py",
        "OwnReplicas.process_of",
        "self._table.better_process(row, 0, 0)",
        "self._table.better_process(row, 1, 0)",
    ): _NO_INSTANCE,
    (
        f"{_PROCESSES}/pool.py",
        "ProcessPool.wait_sent",
        "self._loop.time() < end",
        "self._loop.time() <= end",
    ): _EXACT_TIME,
    (
        f"{_PROCESSES}/pool.py",
        "ProcessPool._restart_later",
        "time.monotonic() - each.started >= _STABLE_SECONDS",
        "time.monotonic() - each.started > _STABLE_SECONDS",
    ): _EXACT_TIME,
    (f"{_PROCESSES}/request_link.py", "RequestLink.__init__", "self.route_changes = 0", "self.route_changes = 1"): (
        "it is compared only with what it was before"
    ),
    **{
        (f"{_PROCESSES}/request_link.py", "RequestLink._on_routes_changed", "self.route_changes += 1", after): (
            "it is compared only with what it was before"
        )
        for after in ("self.route_changes -= 1", "self.route_changes += 2")
    },
    (
        f"{_PROCESSES}/request_link.py",
        "RequestLink._template",
        "has_no_strings=True",
        "has_no_strings=False",
    ): "it only saves looking at each input",
    (
        f"{_PROCESSES}/request_session.py",
        "RequestSession.__init__",
        "self._layout_count = 0",
        "self._layout_count = 1",
    ): _NUMBERED,
    (
        f"{_PROCESSES}/request_session.py",
        "RequestSession._announce_layout",
        "self._layout_count += 1",
        "self._layout_count += 2",
    ): _NUMBERED,
    (
        f"{_PROCESSES}/request_session.py",
        "RequestSession.respond",
        "RESPONSE.pack(number, 0, FINAL | NO_RESPONSE, 0)",
        "RESPONSE.pack(number, 1, FINAL | NO_RESPONSE, 0)",
    ): "an end without a response has no layout",
    (
        "platform/naiad/frontends/http2/connection.py",
        "Http2Connection.on_data_begin",
        "self._data_stream = None",
        "pass",
    ): "the last chunk of the frame before has set it",
}

"""Templates of requests: both sides forget them when the versions change that they were checked for."""

from __future__ import annotations

from server.processes.pair import Pair, Sink, request, run

CHANGES = 20


def test_the_owner_keeps_no_template_of_an_earlier_version() -> None:
    async def test(pair: Pair) -> None:
        for _ in range(CHANGES):
            sink = Sink()
            pair.know_route("m")
            for elements in (1, 2, 2):
                pair.remote.submit(request("m", elements), sink)
            await pair.settle(lambda sink=sink: len(sink.responses) == 3)
            assert pair.session.requests.template_count == 2
            pair.session.requests.on_routes_changed()
            await pair.settle(lambda: not pair.remote.held.routes)
            await pair.settle(lambda: not pair.session.requests.template_count)
            assert pair.remote.held.templates == 0

        assert len(pair.engine.requests) == 3 * CHANGES

    run(test)


def test_a_request_on_its_way_at_the_change_finds_its_template() -> None:
    async def test(pair: Pair) -> None:
        sink = Sink()
        pair.know_route("m")
        pair.remote.submit(request("m"), sink)
        pair.session.requests.on_routes_changed()  # before the owner has read the request
        await pair.settle(lambda: sink.responses)
        assert [each.model_name for each in pair.engine.requests] == ["m"]
        await pair.settle(lambda: not pair.session.requests.template_count)

    run(test)

"""The pure parts of the bench over processes, and its client against a server; `make bench-scaling` measures."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from xml.etree import ElementTree as ET

import pytest

from bench import report as page_report
from bench.report import SCALING_BEGIN, SCALING_END
from bench.results import THEIRS, Results
from bench.scaling import client, load, picture, processes, report, session
from bench.scaling.processes import FIRST, FURTHER, GUESTS, OTHERS, Process

STAT = "7 (a (b) c) S 3 7 7 0 -1 4194560 100 0 0 0 250 50 9 9 20 0 4 0 100 200 300\n"
GUEST = ("/usr/bin/python3", "--instance", "m_0", "--model", "/m/1/model.py")


def results_of(samples: dict[str, dict[str, list[dict[str, float]]]]) -> Results:
    results = Results()
    for case, servers in samples.items():
        for server, values in servers.items():
            for value in values:
                results.add(case, server, value)
    return results


def reading(rate: float, first: float, further: float, guests: float, p50: float = 100) -> dict[str, float]:
    cpu = {FIRST: first, FURTHER: further, GUESTS: guests, OTHERS: 0.0}
    return {session.RATE: rate, session.P50: p50, session.P99: 2 * p50, **cpu, session.ALL: sum(cpu.values())}


SAMPLES = {
    session.ONE_MODEL: {
        "N=1": [reading(10000, 80, 0, 50), reading(5000, 160, 0, 100), reading(10000, 80, 0, 50)],
        "N=2": [reading(30000, 20, 70, 50), reading(15000, 40, 140, 100), reading(30000, 20, 70, 50)],
        THEIRS: [reading(5000, 150, 0, 110), reading(2500, 300, 0, 220), reading(5000, 150, 0, 110)],
    },
    session.EIGHT_MODELS: {"N=1": [reading(9000, 90, 0, 90)], "N=2": [reading(18000, 30, 80, 90)]},
    session.CONNECTIONS: {"N=1": [{**reading(2000, 1, 0, 1), session.IDLE_COUNT: 10000.0, session.IDLE_BYTES: 4903.0}]},
}


def test_cpu_and_parent_are_read_behind_a_name_with_spaces_and_parentheses():
    assert processes.parse_stat(STAT, ticks=100) == (3, 3.0)


def test_pss_is_read_in_bytes():
    assert processes.parse_pss("Rss:   900 kB\nPss:     120 kB\nPss_Anon:  7 kB\n") == 120 * 1024
    assert processes.parse_pss("") == 0


def test_cpu_is_told_apart_by_role_and_only_the_servers_family_counts():
    before = {
        1: Process(0, 100.0, ("init",)),
        10: Process(1, 2.0, ("tritonserver",)),
        11: Process(10, 1.0, ("python3", "-c", "main()", "naiad-process", "38")),
        12: Process(11, 1.0, ("python3", "sweeper")),
        20: Process(1, 5.0, GUEST),
    }
    after = before | {
        10: Process(1, 2.5, ("tritonserver",)),
        11: Process(10, 3.0, ("python3", "-c", "main()", "naiad-process", "38")),
        13: Process(10, 0.25, GUEST),  # started in between
        20: Process(1, 9.0, GUEST),  # of another server
    }
    seconds = processes.spent(processes.family(before, 10), processes.family(after, 10), 10)
    assert seconds == {FIRST: 0.5, FURTHER: 2.0, GUESTS: 0.25, OTHERS: 0.0}


def test_stubs_of_the_reference_count_as_guests():
    stub = Process(10, 1.0, ("/backends/python/triton_python_backend_stub", "/models/m/1/model.py"))
    assert processes.role_of(11, stub, 10) == GUESTS


def test_this_process_is_found_in_proc_with_its_cpu():
    thread = threading.Thread(target=sum, args=(range(100),))
    thread.start()
    thread.join()
    assert processes.read_family(os.getpid())[os.getpid()].cpu > 0
    assert processes.connection_memory(os.getpid()) > 1 << 20


@pytest.mark.parametrize(("cores", "expected"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4]), (16, [1, 2, 4, 8, 16])])
def test_numbers_of_processes_are_the_powers_of_two_up_to_the_cores(cores, expected):
    assert session.counts(cores) == expected


def test_result_of_wrk_is_read_with_its_failures():
    output = "Running 1s test\n  Requests/sec: 5\nscaling-result 3 5000 2000000 250 900\n"
    assert load.parse_wrk(output) == (load.Reading(5000, 2.0, 250.0, 900.0), 3)
    with pytest.raises(ValueError, match="no result:\nPANIC"):
        load.parse_wrk("PANIC: unprotected error")


def test_script_for_wrk_names_every_request_with_its_headers(tmp_path):
    requests = [load.infer_request(model, ["IN"], 2) for model in ("one", "two")]
    script = load.wrk_script([tmp_path / "a", tmp_path / "b"], load.Load(requests, 2))
    assert 'add("/v2/models/two/infer", { ["Inference-Header-Content-Length"] = ' in script
    assert str(tmp_path / "b") in script
    assert "{{" not in script


def test_request_announces_its_tensors_and_carries_their_bytes():
    request = load.infer_request("m", ["A", "B"], 4)
    head, _, body = request.encode().partition(b"\r\n\r\n")
    size = int(request.headers["Inference-Header-Content-Length"])
    assert body[size:] == bytes(32)
    assert f"Content-Length: {size + 32}".encode() in head


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_client_finds_the_end_of_a_response_that_arrives_in_pieces(cut):
    response = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\nContent-Length: 10\r\n\r\n0123456789"
    reader = client.ResponseReader()
    for part in (response[:cut], response[cut:-1]):
        reader.feed(part)
        assert not reader.is_done
    reader.feed(response[-1:])
    assert reader.is_done


def test_client_does_not_count_failed_requests():
    with pytest.raises(client.FailedRequestError, match="503"):
        client.ResponseReader().feed(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")


@contextlib.contextmanager
def server_of(respond):
    """A server that answers each connection on a thread of its own; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threads.append(threading.Thread(target=respond, args=(connection,)))
                    threads[-1].start()

        threads = [threading.Thread(target=accept)]
        threads[0].start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def test_client_measures_requests_in_turn_over_all_connections():
    seen = []

    def respond(connection):
        with connection, contextlib.suppress(ConnectionResetError):  # the client leaves without the last responses
            while data := connection.recv(65536):
                seen.append(data.split()[1])
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    requests = [load.infer_request(model, ["IN"], 2) for model in ("one", "two")]
    with server_of(respond) as port:
        measured = load.client_reading(port, load.Load(requests, 3), 0.05)
        with client.idle_connections("127.0.0.1", port, 3):
            pass
    assert 0 < measured.requests <= len(seen)
    assert 0 < measured.p50 <= measured.p99
    assert {b"/v2/models/one/infer", b"/v2/models/two/infer", b"/v2/health/live"} == set(seen)


def test_client_says_which_request_failed():
    def respond(connection):
        with connection:
            connection.recv(65536)

    with server_of(respond) as port, pytest.raises(SystemExit, match="/v2/models/one/infer: the server closed"):
        load.client_reading(port, load.Load([load.infer_request("one", ["IN"], 2)], 1), 5)


def test_section_has_ratios_turn_by_turn_and_says_which_goals_are_met():
    text = report.section(results_of(SAMPLES), "settings", cores=2)
    assert "| N=2 | 30,000 | 3.00 | 100 | 1.00 | 1.00 | 200 | 20 | 70 | 50 | 140 | 1.08 | 0.54 |" in text
    assert "| CPU of all processes, 16 clients, N=1 / Triton | at most 0.33 x | 0.50 x | **no** |" in text
    assert "| one client, p50, N=2 / N=1 | at most 1.1 x | not measured |  |" in text
    assert "| one model, best rate / N=1 | at least 3 x | needs 16 cores |  |" in text
    assert "| N=1 | 10,000 | 4,903 | 2,000 |" in text
    assert "has no `--processes`" not in text


def test_goals_for_large_machines_take_the_best_number_of_processes():
    text = report.section(results_of(SAMPLES), "settings", cores=16)
    assert "| one model, best rate / N=1 | at least 3 x | 3.00 x | yes |" in text
    assert "| eight models, best rate / N=1 | at least 6 x | 2.00 x | **no** |" in text
    assert "| one model, best rate / Triton | at least 2 x | 6.00 x | yes |" in text


def test_section_of_a_version_without_processes_says_so():
    text = report.section(results_of({session.ONE_MODEL: {"N=1": SAMPLES[session.ONE_MODEL]["N=1"]}}), "s", cores=2)
    assert "This version has no `--processes`" in text
    assert "| N=1 | 10,000 | - | 100 | - | - | 200 | 80 | 0 | 50 | 130 | - | - |" in text


def test_page_keeps_all_sections_when_another_program_writes_it(tmp_path):
    page = tmp_path / "benchmarks.md"
    page_report.write(page, Results(), "old", "3.11")
    models = f"{page_report.MODELS_BEGIN}\nmodels\n{page_report.MODELS_END}"
    page.write_text(f"{page.read_text()}\n{models}\n")
    report.write(page, f"{SCALING_BEGIN}\nfirst\n{SCALING_END}", "<svg/>")
    report.write(page, f"{SCALING_BEGIN}\nsecond\n{SCALING_END}", "<svg></svg>")
    page_report.write(page, Results(), "new", "3.11")
    text = page.read_text()
    assert models in text
    assert f"{SCALING_BEGIN}\nsecond\n{SCALING_END}" in text
    assert f"{SCALING_BEGIN}\nfirst" not in text
    assert page.with_name(report.PICTURE).read_text() == "<svg></svg>"


def test_picture_is_svg_with_a_bar_for_each_role_and_a_line_for_each_case():
    drawn = ET.fromstring(picture.draw(results_of(SAMPLES)))
    tags = [each.tag.rpartition("}")[2] for each in drawn.iter()]
    texts = [each.text for each in drawn.iter() if each.tag.endswith("text")]
    assert tags.count("polyline") == 3  # one model, eight models, Triton
    assert texts.count("N=2") == 2
    assert {"one model", "eight models", FIRST, FURTHER, GUESTS, THEIRS} <= set(texts)
    bars = [each for each in drawn.iter() if each.tag.endswith("rect") and float(each.get("y", "0")) > 40]
    heights = sorted(float(each.get("height", "0")) for each in bars)
    # Shares of 20, 70 and 50 us of N=2 are drawn to scale.
    assert heights[-1] / heights[-2] == pytest.approx(150 / 110, rel=0.02)


@pytest.mark.parametrize(("highest", "step"), [(0, 1e-9), (4, 1), (4.1, 2), (130, 50), (36000, 10000)])
def test_scale_has_few_round_steps(highest, step):
    assert picture.step_of(highest) == pytest.approx(step, rel=9 if not highest else 1e-6)

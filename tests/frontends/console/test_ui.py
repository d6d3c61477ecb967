"""The page in a real browser, with a real server behind it."""

from __future__ import annotations

import os
import signal

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait
from support.server import ServerProcess

from .conftest import MODELS


@pytest.fixture
def page(browser, server):
    browser.get(f"http://{server.http_url}/ui")
    until(browser, lambda: len(rows(browser, "models")) == 3)
    return browser


def until(page, condition):
    return WebDriverWait(page, 60, poll_frequency=0.05).until(lambda _: condition())


def rows(page, table):
    """The cells of a table's rows, read at one instant: the page writes them anew each second."""
    script = (
        "return [...document.getElementById(arguments[0]).rows].map(row => [...row.cells].map(cell => cell.innerText))"
    )
    return page.execute_script(script, table)


def text_of(page, name):
    return page.find_element(By.ID, name).text


def choose(page, select, value):
    script = "return [...document.getElementById(arguments[0]).options].map(option => option.value)"
    until(page, lambda: value in page.execute_script(script, select))  # at one instant, as `rows`
    Select(page.find_element(By.ID, select)).select_by_visible_text(value)


def say(page, text):
    until(page, lambda: page.find_element(By.ID, "go").is_enabled())
    page.find_element(By.ID, "text").send_keys(text)
    page.find_element(By.ID, "go").click()
    until(page, lambda: page.find_element(By.ID, "go").is_enabled())


def test_models_and_guests_are_shown_as_they_are(page, server):
    models = {cells[0]: cells for cells in rows(page, "models")}
    assert sorted(models) == ["adder", "speaker", "upper"]
    assert models["adder"][1:3] == ["1", "READY"]
    assert models["adder"][7:] == ["python", "the host's interpreter"]
    guests = {cells[0]: cells for cells in rows(page, "guests")}
    pids = {child.pid for child in server.children()}
    assert {int(cells[1]) for cells in guests.values()} <= pids
    assert all("python" in cells[4] and cells[2].endswith(" MiB") for cells in guests.values())


def test_a_request_is_offered_sent_and_its_answer_shown(page):
    choose(page, "model", "adder")
    request = page.find_element(By.ID, "request")
    until(page, lambda: '"IN"' in request.get_property("value"))
    assert '"data":[0]' in request.get_property("value").replace(" ", "")
    page.execute_script("arguments[0].value = arguments[0].value.replace('[0]', '[41]')", request)
    page.find_element(By.CSS_SELECTOR, "#ask button").click()
    until(page, lambda: text_of(page, "took").startswith("200 in "))
    assert "42" in text_of(page, "response")
    until(page, lambda: any(cells[0] == "adder" and int(cells[3]) >= 1 for cells in rows(page, "models")))
    points = page.find_elements(By.CSS_SELECTOR, "#models polyline")
    assert all(line.get_attribute("points") for line in points)


def test_a_refused_request_shows_the_servers_words(page):
    choose(page, "model", "adder")
    request = page.find_element(By.ID, "request")
    until(page, lambda: '"IN"' in request.get_property("value"))
    page.execute_script("arguments[0].value = '{\"inputs\": []}'", request)
    page.find_element(By.CSS_SELECTOR, "#ask button").click()
    until(page, lambda: text_of(page, "took").startswith("400 in "))
    assert "expected 1 inputs but got 0" in text_of(page, "response")


def test_a_decoupled_models_responses_are_shown(page):
    choose(page, "model", "speaker")
    request = page.find_element(By.ID, "request")
    until(page, lambda: '"text_input"' in request.get_property("value"))
    text = '{"inputs": [{"name": "text_input", "data": ["a b"]}, {"name": "stream", "data": [true]}, '
    text += '{"name": "return_logprobs", "data": [false]}, '
    text += '{"name": "sampling_parameters", "data": ["{\\"max_tokens\\": 9}"]}]}'
    page.execute_script("arguments[0].value = arguments[1]", request, text)
    page.find_element(By.CSS_SELECTOR, "#ask button").click()
    until(page, lambda: text_of(page, "response").count("data: ") == 2)


def test_a_chat_streams_into_the_page_and_text_is_never_markup(page):
    choose(page, "speaker", "speaker")
    say(page, "hello <b>there</b>")
    said = [part.text.strip() for part in page.find_elements(By.CSS_SELECTOR, "#talk p")]
    assert said == ["hello <b>there</b>", "hello <b>there</b>"]
    say(page, "fail")
    assert page.find_element(By.CSS_SELECTOR, "#talk .error").text == "this model fails when it is told to"
    assert not page.find_elements(By.CSS_SELECTOR, "#talk b")


def test_the_chat_model_without_conversations_gets_the_text(page):
    choose(page, "speaker", "upper")
    say(page, "loud")
    assert [part.text for part in page.find_elements(By.CSS_SELECTOR, "#talk p")] == ["loud", "LOUD"]
    page.find_element(By.ID, "forget").click()
    assert not page.find_elements(By.CSS_SELECTOR, "#talk p")


def test_a_guest_that_dies_is_seen_to_be_replaced(page, server):
    before = {cells[0]: cells for cells in rows(page, "guests")}
    name, cells = next((name, cells) for name, cells in before.items() if name.startswith("adder"))
    os.kill(int(cells[1]), signal.SIGKILL)
    until(page, lambda: any(row[0] == name and row[1] != cells[1] for row in rows(page, "guests")))
    after = next(row for row in rows(page, "guests") if row[0] == name)
    assert after[3].startswith("1 x ")


def test_the_page_loads_nothing_from_elsewhere_and_breaks_no_rule_of_its_own(page, server):
    policy = next(
        value for name, value in server.get("/ui").headers.items() if name.lower() == "content-security-policy"
    )
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not [entry for entry in page.get_log("browser") if "Content Security Policy" in entry["message"]]
    script = "return performance.getEntriesByType('resource').map(entry => new URL(entry.name).host)"
    assert set(page.execute_script(script)) == {server.http_url}
    assert server.post("/ui", {}).status == 405


def test_without_the_flag_there_is_no_page(tmp_path):
    with ServerProcess(MODELS, "--model-control-mode=explicit", work=tmp_path) as server:
        assert server.get("/ui").status == 404
        assert server.get("/ui/state").status == 404

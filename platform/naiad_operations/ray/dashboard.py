"""Serve's REST API, at Ray's dashboard: deploy an application beside others, and wait until it runs.

Documented at https://docs.ray.io/en/latest/serve/api/index.html#serve-rest-api. It needs no Ray on this machine.
"""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from naiad.core.errors import DeploymentError
from naiad.core.foreign_json import read_json

_PATH = "/api/serve/applications/"
_SECONDS = 30
_LOOK_SECONDS = 0.5
_FAILED = frozenset({"DEPLOY_FAILED", "UNHEALTHY", "DELETING"})
_DEFAULT_PORT = 8000


def deploy_application(dashboard: str, application: Mapping[str, Any]) -> None:
    """Deploy an application, or change the one with this name; other applications stay."""
    # The API replaces all applications that it deployed before.
    running = _request(dashboard).get("applications", {})
    others = [each["deployed_app_config"] for name, each in running.items() if name != application["name"]]
    _request(dashboard, {"applications": [*(each for each in others if each), application]})


def wait_until_running(dashboard: str, name: str, seconds: float) -> None:
    """Wait until the application runs with the configuration that was deployed last."""
    deadline = time.monotonic() + seconds
    while True:
        state = _request(dashboard).get("applications", {}).get(name, {})
        status = state.get("status", "NOT_STARTED")
        if status == "RUNNING":
            return
        reasons = [state.get("message", ""), *(each["message"] for each in state.get("deployments", {}).values())]
        why = "; ".join(reason for reason in reasons if reason) or "it has given no reason"
        if status in _FAILED:
            raise DeploymentError(f"cannot run '{name}' on Ray: {status}: {why}")
        if time.monotonic() > deadline:
            raise DeploymentError(
                f"cannot run '{name}' on Ray: it is {status} after {seconds:g} s: {why}; Ray continues, "
                "`serve status` shows how far it is"
            )
        time.sleep(_LOOK_SECONDS)


def directory_url(dashboard: str, listing: str) -> str:
    """The URL of the list of servers: *listing* at Serve's HTTP port on the dashboard's machine."""
    port = (_request(dashboard).get("http_options") or {}).get("port", _DEFAULT_PORT)
    host = urlsplit(dashboard).hostname
    return f"http://{host}:{port}{listing}"


def _request(dashboard: str, config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """GET the state of all applications, or PUT their configuration."""
    url = dashboard.rstrip("/") + _PATH
    if urlsplit(url).scheme not in {"http", "https"}:
        raise DeploymentError(f"cannot use --address={dashboard}: expected a URL, such as http://127.0.0.1:8265")
    body = None if config is None else json.dumps(config).encode()
    headers = {"Content-Type": "application/json"}
    if token := _token(os.environ, Path.home()):
        headers["Authorization"] = f"Bearer {token}"
    request = urllib.request.Request(  # noqa: S310 - http or https, checked above
        url, body, headers, method="GET" if body is None else "PUT"
    )
    try:
        with urllib.request.urlopen(request, timeout=_SECONDS) as response:  # noqa: S310 - as above
            text = response.read()
    except urllib.error.HTTPError as error:
        if error.code in {http.client.UNAUTHORIZED, http.client.FORBIDDEN}:
            raise DeploymentError(
                f"cannot deploy to Ray at {dashboard}: {error.code}: the cluster requires "
                f"{'another' if token else 'a'} token; set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to the file with it"
            ) from error
        said = error.read().decode(errors="replace").strip().splitlines()
        raise DeploymentError(
            f"cannot deploy to Ray at {dashboard}: {error.code}: {said[-1] if said else ''}"
        ) from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DeploymentError(
            f"cannot reach Ray's dashboard at {dashboard}: {reason}; start Ray (`ray start --head`), or name its "
            "dashboard with --address=URL"
        ) from error
    try:
        answer: dict[str, Any] = read_json(text) if text.strip() else {}
    except ValueError:
        raise DeploymentError(f"cannot use {dashboard}: its response is not that of Ray's dashboard") from None
    return answer


def _token(environ: Mapping[str, str], home: Path) -> str:
    """The cluster's token, from the places in which Ray looks for it; empty without one."""
    if text := environ.get("RAY_AUTH_TOKEN", "").strip():
        return text
    given = environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(given) if given else home / ".ray" / "auth_token"
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        if not given:
            return ""
        raise DeploymentError(f"cannot read the cluster's token: RAY_AUTH_TOKEN_PATH={given} is missing") from None
    except (OSError, ValueError) as error:
        raise DeploymentError(f"cannot read the cluster's token: {path}: {error}") from error

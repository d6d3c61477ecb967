"""Validates the OpenAPI document on standard input; a process of its own, since schemathesis takes seconds to import."""

from __future__ import annotations

import json
import sys

import schemathesis

schemathesis.openapi.from_dict(json.load(sys.stdin)).validate()

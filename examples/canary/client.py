"""Serve a model whose targets are two models of another server, and move its share from one to the other."""

import argparse
import collections
import sys
import tempfile
from pathlib import Path

import naiad

REQUESTS = 40
CONFIG = """
backend: "remote"
parameters {{ key: "url" value {{ string_value: "{url}/v2/models/greet_stable, {url}/v2/models/greet_new" }} }}
parameters {{ key: "weights" value {{ string_value: "{weights}" }} }}
"""


def count_greetings(model):
    """How many of the requests each target answered, by the first word of its greeting."""
    counts = collections.Counter()
    for _ in range(REQUESTS):
        (response,) = model.infer(inputs={"NAME": ["Ada"]})
        counts[response.outputs["GREETING"].to_string_array().item().partition(",")[0]] += 1
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="localhost:8000", help="where the server of the targets answers HTTP")
    options = parser.parse_args()

    seen = []
    with tempfile.TemporaryDirectory() as repository:
        (Path(repository) / "greet" / "1").mkdir(parents=True)
        config = Path(repository) / "greet" / "config.pbtxt"
        explicit = naiad.ModelControlMode.EXPLICIT
        with naiad.Server(model_repository=repository, model_control_mode=explicit) as server:
            for weights in ("100, 0", "50, 50", "0, 100"):
                config.write_text(CONFIG.format(url=f"http://{options.url}", weights=weights), encoding="utf-8")
                seen.append(sorted(count_greetings(server.load("greet"))))
                print(f"weights {weights}: {' and '.join(seen[-1])}")
    if seen != [["Hello"], ["Hello", "Welcome"], ["Welcome"]]:
        sys.exit("a wrong answer")


if __name__ == "__main__":
    main()

"""Send every case to the reference and store its responses.

    python tests/conformance/record.py DIRECTORY_OF_THE_REFERENCE

writes `expected.json` beside this file. The reference is a folder as `bench/reference.py` makes it.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest's `pythonpath` does

from conformance.judge import EXPECTED
from conformance.running import answers, serving


def main() -> None:
    reference = Path(sys.argv[1]) / "bin" / "tritonserver"
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder), reference) as (server, repository):
        recorded = answers(server, repository)
    EXPECTED.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")
    print(f"{EXPECTED}: {len(recorded['http'])} HTTP and {len(recorded['grpc'])} gRPC cases")


if __name__ == "__main__":
    main()

"""Push, pull, serve, tamper: `.venv/bin/python tests/demo/registry_demo.py` prints each command and what it answers.

A registry of the tests runs on a loopback port, so that the demonstration needs neither a network nor a login.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from support.registry import Registry  # noqa: E402 - the tests' folder is on the path from here
from support.server import ServerProcess  # noqa: E402 - likewise

ASK = {"inputs": [{"name": name, "shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]} for name in ("LEFT", "RIGHT")]}


def demonstrate(folder: Path) -> None:
    """Run the demonstration in an empty folder."""
    environ = {**os.environ, "HOME": str(folder), "NAIAD_STORE": str(folder / "store")}
    for name in ("DOCKER_CONFIG", "REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR"):
        environ.pop(name, None)

    def naiad(*arguments: str) -> str:
        print(f"\n$ naiad {' '.join(arguments)}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", "naiad", *arguments],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout + done.stderr, end="", flush=True)
        return done.stdout

    shutil.copytree(ROOT / "examples" / "add_sub" / "models", folder / "models")
    with Registry() as registry:
        target = registry.uri("shop", "1")
        print(f"a registry runs at {registry.host}")
        (folder / "keys.toml").write_text(naiad("env", "keygen", "build.pem", "--name=build"))
        trust = "--env-trust=keys.toml"
        naiad("push", target, "models", "--key=build.pem")
        naiad("verify", target, trust)
        naiad("pull", target, "--require-signature", trust)

        print("\n# A server pulls what it serves.")
        flags = (f"--model-repository={target}", "--require-signature", f"--env-trust={folder / 'keys.toml'}")
        with ServerProcess(None, *flags, work=folder, environ={"NAIAD_STORE": str(folder / "store")}) as server:
            reply = server.post("/v2/models/add_sub/infer", ASK).json()
            print({output["name"]: output["data"] for output in reply["outputs"]})
            print(*(line.split("] ")[-1] for line in server.log.splitlines() if "is signed by" in line), sep="\n")

        print("\n# A changed model moves a layer of a kilobyte.")
        code = folder / "models" / "add_sub" / "1" / "model.py"
        code.write_text(code.read_text() + "\n# changed\n")
        before = registry.received
        naiad("push", target, "models", "--key=build.pem")
        print(f"{registry.received - before} bytes were sent")

        print("\n# Somebody replaces the layer in the registry and moves the tag.")
        manifest = registry.manifest("shop", "1")
        (folder / "evil").mkdir()
        code.write_text("import os  # evil\n")
        naiad("push", registry.uri("evil", "1"), "models")
        stolen = registry.manifest("evil", "1")["layers"][0]
        manifest["layers"][0].update(digest=stolen["digest"], size=stolen["size"])
        registry.put("shop", "1", manifest, registry.blobs["evil"][stolen["digest"]])
        naiad("pull", target, "--require-signature", trust)
        naiad("verify", target, trust)
        print(json.dumps({"requests": len(registry.asked)}))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="naiad-registry-demo-") as work:
        demonstrate(Path(work))

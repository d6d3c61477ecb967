"""Examples at the end of each command's `--help`: what people run most, as they would type it."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TEXT = """
serve
    naiad serve --model-repository=models
    naiad serve churn.pkl resnet.onnx
    naiad serve --model-repository=models --model-control-mode=poll --ui=true
run
    naiad run models/add_sub
    naiad run models/add_sub --input INPUT0=[[1,2,3,4]] --input INPUT1=[[1,1,1,1]]
    naiad run models/add_sub --debug
explain
    naiad explain models/add_sub
    naiad explain add_sub --model-repository=models --prepare
doctor
    naiad doctor models
    naiad doctor models --from-triton
    naiad doctor models --strict --json
bench
    naiad bench add_sub
    naiad bench add_sub --concurrency=1,16 --input=request.json
    naiad bench add_sub --url=http://localhost:8000 --rate=500 --csv=rates.csv
tune
    naiad tune models/add_sub
    naiad tune models/add_sub --objective='p95<20ms' --output=tuned
bundle
    naiad bundle --output=shop.tar.zst --model-repository=models
    naiad bundle --oci=image --name=shop --model-repository=models
    naiad bundle --verify=/opt/shop
push
    naiad push oci://registry.example/shop:1 models
    naiad push oci://registry.example/shop:1 models --key=build.pem
pull
    naiad pull oci://registry.example/shop:1
    naiad pull oci://registry.example/shop:1 --output=models --model=churn
verify
    naiad verify models --env-trust=keys.toml
    naiad verify oci://registry.example/shop:1 --env-trust=keys.toml
deploy
    naiad deploy systemd --output=naiad.service --model-repository=/srv/models
    naiad deploy kubernetes --replicas=2 --model-repository=s3://bucket/models
    naiad deploy dockerfile --output=Dockerfile --model-repository=models
ray
    naiad ray up --model-repository=/srv/models --max=4
    naiad ray yaml --output=service.yaml --model-repository=/srv/models
init
    naiad init model add_sub
    naiad init --from churn.pkl
    naiad init backend scorer
init model
    naiad init model add_sub
    naiad init model price --from shop:price
init backend
    naiad init backend scorer
    naiad init backend scorer --model-repository shop/models
add
    naiad add models/churn scikit-learn==1.5.* pandas
    naiad add models/churn torch --python 3.12
remove
    naiad remove models/churn pandas
    naiad remove models/churn/1/model.py pandas torch
lock
    naiad lock models/churn
    naiad lock models/churn --upgrade
    naiad lock models/churn --check
top
    naiad top
    naiad top http://localhost:8000 --once --json
completion
    naiad completion bash
    naiad completion fish
env
    naiad env list
    naiad env build envs/tables --output build/tables
    naiad env prefetch --model-repository models --env-build allowed
env build
    naiad env build envs/tables --output build/tables
    naiad env build envs/tables --python 3.12 --output build/tables
env pack
    naiad env pack build/tables --output tables.tar.zst
    naiad env pack /opt/conda/envs/tables --output tables.tar.zst
env prefetch
    naiad env prefetch tables.tar.zst
    naiad env prefetch --model-repository models --env-build allowed
env pin
    naiad env pin models
    naiad env pin models --json
env sign
    naiad env keygen build.pem >> keys.toml
    naiad env sign tables.tar.zst --key build.pem
env keygen
    naiad env keygen build.pem
    naiad env keygen build.pem >> keys.toml
env inspect
    naiad env inspect tables.tar.zst
    naiad env inspect 3f2a --json
env verify
    naiad env verify
    naiad env verify 3f2a --json
env list
    naiad env list
    naiad env list --env-store /srv/naiad --json
env gc
    naiad env gc --dry-run
    naiad env gc --older-than 30d
env remove
    naiad env remove 3f2a
    naiad env remove tables.tar.zst
env diff
    naiad env diff tables-1.tar.zst tables-2.tar.zst
    naiad env diff 3f2a tables.tar.zst --json
env why
    naiad env why numpy tables.tar.zst
    naiad env why numpy .venv
"""  # the words of a command behind `naiad`, then its examples


def _examples() -> Mapping[str, list[str]]:
    blocks = [block.splitlines() for block in re.split(r"\n(?=\S)", _TEXT.strip())]
    return {command: [each.strip() for each in examples] for command, *examples in blocks}


EXAMPLES = _examples()


def examples_text(command: str) -> str:
    """The end of a command's help, with its heading; empty for one without examples."""
    examples = EXAMPLES.get(command, ())
    return "".join(("Examples:\n", *(f"  {example}\n" for example in examples))) if examples else ""

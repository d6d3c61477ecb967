"""Fits and saves models with MLflow; run by an interpreter that has it. Prints what they answer."""

from __future__ import annotations

import json
import logging
import shutil
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import mlflow.sklearn
import numpy as np
import pandas as pd
from mlflow.models import ModelSignature, infer_signature
from mlflow.types import ColSpec, ParamSchema, ParamSpec, Schema, TensorSpec
from mlflow.types.schema import Array, DataType, Object, Property
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
repository = Path(sys.argv[1])
NAMES = ("mlflow-skinny", "numpy", "pandas", "scikit-learn", "skops", "cloudpickle")
REQUIREMENTS = [f"{name}=={version(name)}" for name in NAMES]


def folder(name: str) -> str:
    (repository / name).mkdir(parents=True)
    return str(repository / name / "1")


def save(name: str, model: Any, signature: Any, **more: Any) -> None:
    mlflow.pyfunc.save_model(
        folder(name), python_model=model, signature=signature, pip_requirements=REQUIREMENTS, **more
    )


# -- scikit-learn -----------------------------------------------------------------------------------------------------

people = pd.DataFrame({"age": [20.0, 30, 40, 50], "city": ["a", "b", "a", "c"]})
columns = ColumnTransformer(
    [("numbers", StandardScaler(), ["age"]), ("texts", OneHotEncoder(handle_unknown="ignore"), ["city"])]
)
table = make_pipeline(columns, LogisticRegression()).fit(people, ["no", "yes", "no", "yes"])
mlflow.sklearn.save_model(
    table, folder("people"), signature=infer_signature(people, table.predict(people)), pip_requirements=REQUIREMENTS
)
mlflow.sklearn.save_model(table, folder("unsigned"), pip_requirements=REQUIREMENTS)
for name in ("configured", "refused_code", "without_file"):
    shutil.copytree(repository / "unsigned", repository / name)
shutil.copytree(repository / "people" / "1", repository / "nested" / "1" / "model")

# -- tensors ----------------------------------------------------------------------------------------------------------


class Scale(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return model_input * 2


class Add(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return {"sum": model_input["a"] + model_input["b"], "texts": np.array([f"{x[0]}" for x in model_input["a"]])}


single, flat = (np.dtype(kind) for kind in ("float32", "int64"))
save(
    "scale",
    Scale(),
    ModelSignature(inputs=Schema([TensorSpec(single, (-1, 2, 2))]), outputs=Schema([TensorSpec(single, (-1, 2, 2))])),
)
save(
    "add",
    Add(),
    ModelSignature(
        inputs=Schema([TensorSpec(flat, (-1, 1), "a"), TensorSpec(flat, (-1, 1), "b")]),
        outputs=Schema([TensorSpec(flat, (-1, 1), "sum"), TensorSpec(np.dtype("str"), (-1,), "texts")]),
    ),
)

# -- a model of one's own ----------------------------------------------------------------------------------------------


class Visits(mlflow.pyfunc.PythonModel):
    """Types of all columns, an optional one, and parameters."""

    def predict(self, context, model_input, params=None):
        if (model_input["count"] < 0).any():
            raise RuntimeError("a negative count")
        notes = model_input["note"].tolist() if "note" in model_input else [None] * len(model_input)
        return pd.DataFrame(
            {
                "total": model_input["count"] * params["factor"] + sum(params["extra"]) + params["priority"],
                "next": model_input["when"] + pd.Timedelta(days=1),
                "note": [note or "-" for note in notes],
                "first": [tags[0] for tags in model_input["tags"]],
                "raw": [bytes(reversed(value)) for value in model_input["raw"]],
                "open": ~model_input["closed"],
            }
        )


save(
    "visits",
    Visits(),
    ModelSignature(
        inputs=Schema(
            [
                ColSpec("long", "count"),
                ColSpec("datetime", "when"),
                ColSpec("string", "note", required=False),
                ColSpec(Array(DataType.string), "tags"),
                ColSpec("binary", "raw"),
                ColSpec("boolean", "closed"),
            ]
        ),
        outputs=Schema(
            [
                ColSpec("double", "total"),
                ColSpec("datetime", "next"),
                ColSpec("string", "note"),
                ColSpec("string", "first"),
                ColSpec("binary", "raw"),
                ColSpec("boolean", "open"),
            ]
        ),
        params=ParamSchema(
            [
                ParamSpec("factor", "double", 2.0),
                ParamSpec("extra", "long", [0], shape=(-1,)),
                ParamSpec("priority", "long", 0),
            ]
        ),
    ),
)


class Shout(mlflow.pyfunc.PythonModel):
    def predict(self, model_input: list[str]) -> list[str]:
        return [text.upper() for text in model_input]


save("shout", Shout(), None)
shutil.copytree(repository / "shout", repository / "newer")
file = repository / "newer" / "1" / "MLmodel"
file.write_text(file.read_text().replace(f"mlflow_version: {version('mlflow-skinny')}", "mlflow_version: 99.1.0"))


class Agent(mlflow.pyfunc.PythonModel):
    """Returns a record without an output that its signature calls optional, as MLflow's own `ChatModel`."""

    def predict(self, context, model_input, params=None):
        return {"id": "abc", "choices": [{"text": text} for text in model_input["prompt"]]}


choices = ColSpec(Array(Object([Property("text", DataType.string)])), "choices")
outputs = Schema([ColSpec("string", "id"), choices, ColSpec("string", "note", required=False)])
save("agent", Agent(), ModelSignature(Schema([ColSpec("string", "prompt")]), outputs))


class Gaps(mlflow.pyfunc.PythonModel):
    def predict(self, context, model_input, params=None):
        return pd.DataFrame({"number": [None if text == "none" else 1.0 for text in model_input["text"]]})


save("gaps", Gaps(), ModelSignature(Schema([ColSpec("string", "text")]), Schema([ColSpec("long", "number")])))

# -- what is wrong ------------------------------------------------------------------------------------------------------

shutil.copytree(repository / "people", repository / "broken")
(repository / "broken" / "1" / "MLmodel").write_text("flavors: [\n")
shutil.copytree(repository / "people", repository / "flavorless")
file = repository / "flavorless" / "1" / "MLmodel"
file.write_text(file.read_text().replace("  python_function:", "  other:"))
shutil.copytree(repository / "people", repository / "without_requirements")
for name in ("python_env.yaml", "requirements.txt", "conda.yaml"):
    (repository / "without_requirements" / "1" / name).unlink()
shutil.copytree(repository / "people", repository / "without_column")
(model,) = (repository / "without_file" / "1").glob("model.*")
model.unlink()

some = people.iloc[[0, 3]]
print(json.dumps({"people": table.predict(some).tolist(), "requirements": REQUIREMENTS}))

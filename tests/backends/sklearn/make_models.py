"""Fits and saves estimators; run by the interpreter that will serve them. Prints what they answer."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path

import joblib
import numpy as np
import pandas as pd
import skops.io
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

folder = Path(sys.argv[1])
X, y = load_iris(return_X_y=True)


def save(name: str, estimator: object, *, as_pickle: bool = False) -> None:
    version = folder / name / "1"
    version.mkdir(parents=True)
    if as_pickle:
        joblib.dump(estimator, version / "model.joblib")
    else:
        skops.io.dump(estimator, version / "model.skops")


iris = LogisticRegression(max_iter=500).fit(X, y)
save("iris", iris)
save("pickled", iris, as_pickle=True)
save("allowed", iris, as_pickle=True)
names = np.array(["setosa", "versicolor", "virginica"])[y]
save("names", LogisticRegression(max_iter=500).fit(X, names))
save("two_targets", LinearRegression().fit(X[:, :2], X[:, 2:]))
save("reduced", PCA(n_components=2).fit(X))
save("clusters", KMeans(n_clusters=3, n_init=1, random_state=0).fit(X))
people = pd.DataFrame({"age": [20.0, 30, 40, 50], "city": ["a", "b", "a", "c"]})
columns = ColumnTransformer(
    [("numbers", StandardScaler(), ["age"]), ("texts", OneHotEncoder(handle_unknown="ignore"), ["city"])]
)
table = make_pipeline(columns, LogisticRegression()).fit(people, ["no", "yes", "no", "yes"])
save("table", table)
save("table_without_configuration", table)
save("unsafe", make_pipeline(FunctionTransformer(copy.copy), LogisticRegression(max_iter=500)).fit(X, y))
save("no_estimator", {"weights": [1, 2]})

print(
    json.dumps(
        {
            "rows": X[[0, 60, 120]].tolist(),
            "iris": iris.predict(X[[0, 60, 120]]).tolist(),
            "iris_probabilities": iris.predict_proba(X[[0, 60, 120]]).tolist(),
            "two_targets": LinearRegression().fit(X[:, :2], X[:, 2:]).predict(X[[0, 60, 120], :2]).tolist(),
            "reduced": PCA(n_components=2).fit(X).transform(X[[0, 60, 120]]).tolist(),
            "table": table.predict(people.iloc[[0, 3]]).tolist(),
            "table_probabilities": table.predict_proba(people.iloc[[0, 3]]).tolist(),
        }
    )
)

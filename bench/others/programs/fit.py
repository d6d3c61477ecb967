"""Fits the classifier of the second job: `fit.py FILE FEATURES`, with the scikit-learn of its environment."""

import sys
from pathlib import Path

from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier


def fit(features: int) -> RandomForestClassifier:
    """A forest whose trees take some milliseconds together, for one row or for thirty."""
    rows, classes = make_classification(2000, features, n_informative=12, n_classes=4, random_state=0)
    return RandomForestClassifier(100, random_state=0).fit(rows, classes)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    fitted = fit(int(sys.argv[2]))
    if path.suffix == ".skops":
        import skops.io

        skops.io.dump(fitted, path)
    else:
        import joblib

        joblib.dump(fitted, path)

"""Which package installs a module: the names differ for some."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

# Common packages that may not be installed beside naiad, whose metadata names the others.
_KNOWN = {
    "Crypto": "pycryptodome",
    "PIL": "pillow",
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "docx": "python-docx",
    "dotenv": "python-dotenv",
    "faiss": "faiss-cpu",
    "fitz": "pymupdf",
    "grpc": "grpcio",
    "jwt": "pyjwt",
    "magic": "python-magic",
    "osgeo": "gdal",
    "pynvml": "nvidia-ml-py",
    "pytorch_lightning": "pytorch-lightning",
    "sentence_transformers": "sentence-transformers",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "whisper": "openai-whisper",
    "yaml": "pyyaml",
    "zmq": "pyzmq",
}


# fmt: off
# Common packages that are called as their module.
_SAME_NAME = frozenset((
    "accelerate", "aiohttp", "albumentations", "anthropic", "bitsandbytes", "boto3", "botocore", "catboost",
    "cryptography", "datasets", "diffusers", "einops", "evaluate", "fastapi", "flask", "fsspec", "gensim", "gradio",
    "h5py", "httpx", "imageio", "jax", "jieba", "joblib", "jsonschema", "keras", "kornia", "langchain", "librosa",
    "lightgbm", "lightning", "lxml", "matplotlib", "modelscope", "msgpack", "networkx", "nltk", "numba", "numpy",
    "onnx", "onnxruntime", "openai", "openpyxl", "optimum", "orjson", "pandas", "peft", "plotly", "polars", "psutil",
    "pyarrow", "pydantic", "pydub", "rasterio", "redis", "regex", "requests", "safetensors", "scipy", "seaborn",
    "sentencepiece", "shap", "shapely", "simplejson", "six", "soundfile", "soxr", "spacy", "sqlalchemy", "starlette",
    "statsmodels", "sympy", "tensorflow", "tiktoken", "timm", "tokenizers", "torch", "torchaudio", "torchmetrics",
    "torchvision",
    "tqdm", "transformers", "tritonclient", "triton", "ujson", "ultralytics", "uvicorn", "vllm", "xgboost",
))


def package_of(module: str) -> str:
    """The package to install for a module; empty if that is unknown.

    Never a guess: a package that happens to have the module's name may be a stranger's.
    """
    top = module.partition(".")[0]
    if top in _KNOWN:
        return _KNOWN[top]
    found = importlib.metadata.packages_distributions().get(top, ())
    return found[0] if found else top if top in _SAME_NAME else ""


def server_search_path(environ: Mapping[str, str]) -> list[Path]:
    """The working directory and PYTHONPATH: only models under the server's own interpreter import from them."""
    named = python_path(environ).split(os.pathsep)
    with contextlib.suppress(FileNotFoundError):
        return [
            *([Path.cwd()] if imports_from_working_directory() else []),
            *(Path(folder).absolute() for folder in named if folder),
        ]
    return []


def python_path(environ: Mapping[str, str]) -> str:
    """PYTHONPATH as the server's own interpreter takes it: empty if that ignores variables, as in a bundle (`-I`)."""
    return "" if sys.flags.ignore_environment else environ.get("PYTHONPATH", "")


def imports_from_working_directory() -> bool:
    """Whether models under the server's own interpreter import from the working directory; not in a bundle (`-I`)."""
    return not sys.flags.isolated


def folder_with_module(module: str, folders: Iterable[Path]) -> Path | None:
    """The first folder that has a top-level module; None without one."""
    top = module.partition(".")[0]
    for folder in folders:
        with contextlib.suppress(OSError):
            if (folder / top / "__init__.py").is_file() or (folder / f"{top}.py").is_file():
                return folder
            # Packages without `__init__.py`, and extension modules.
            patterns = (f"{top}/*.py", f"{top}/*/*.py", f"{top}.*.so")
            if any(any(folder.glob(pattern)) for pattern in patterns):
                return folder
    return None

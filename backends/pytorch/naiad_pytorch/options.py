"""The parameters of a model, and what they set in PyTorch.

Names, values and defaults are those of the reference's backend (pytorch_backend src/pt/model_state.cc, src/model.py,
README.md). An instance is a process, so what is global there, such as the number of threads, is the instance's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

import torch
import triton_python_backend_utils as pb_utils
from saved_models.settings import ModelSettings, threads_for_instance

_COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
_SHARING = "ENABLE_WEIGHT_SHARING"
_SWITCHES = {
    "ENABLE_JIT_EXECUTOR": "_jit_set_profiling_executor",  # whether TorchScript profiles before it optimizes
    "ENABLE_JIT_PROFILING": "_jit_set_profiling_mode",  # whether it profiles at all
    "ENABLE_TENSOR_FUSER": "_jit_set_texpr_fuser_enabled",  # whether it fuses operations
}  # functions of PyTorch that set what flags say; without the flag, PyTorch chooses


@dataclass(frozen=True)
class Options:
    """What the parameters of a model ask for, but for settings of the whole process."""

    # Where the inputs are to be; None where the model itself decides, and inputs are on the CPU.
    device: Optional[torch.device] = None
    is_inference: bool = True  # whether autograd is off altogether, and not only its recording
    cleans_cache: bool = False  # whether memory of the GPU is given back after each call
    # Of `torch.compile` for a module in `model.py`; None not to compile it.
    compile_arguments: Optional[Mapping[str, Any]] = None


def read_options(settings: ModelSettings) -> Options:
    """The options in the parameters of a model; ModelLoadError for a wrong value, or a GPU that PyTorch cannot use."""
    return Options(
        device=_device(settings),
        is_inference=settings.flag("INFERENCE_MODE", default=True),
        cleans_cache=settings.flag("ENABLE_CACHE_CLEANING", default=False),
        compile_arguments=_compile_arguments(settings),
    )


def prepare_process(settings: ModelSettings) -> None:
    """Set in this process what the parameters of a model ask for, before a file is read."""
    if settings.flag(_SHARING, default=False):
        pb_utils.Logger.log_warn(
            f"{_SHARING} of model '{settings.name}' has no effect: each instance is a process with weights of its own; "
            "use one instance with dynamic_batching where memory is short"
        )
    intra = settings.integer("INTRA_OP_THREAD_COUNT", settings.integer("NUM_THREADS", 0))
    inter = settings.integer("INTER_OP_THREAD_COUNT", settings.integer("NUM_INTEROP_THREADS", 0))
    intra = intra if intra > 0 else threads_for_instance()
    if intra:
        torch.set_num_threads(intra)
    if inter > 0:
        torch.set_num_interop_threads(inter)
    torch.backends.cudnn.enabled = not settings.flag("DISABLE_CUDNN", default=False)
    # What C++ has as global settings of TorchScript's executor is there in Python under private names alone.
    torch._C._set_graph_executor_optimize(not settings.flag("DISABLE_OPTIMIZED_EXECUTION", default=False))  # noqa: SLF001 - see above
    for key, name in _SWITCHES.items():
        if key in settings.parameters:
            getattr(torch._C, name)(settings.flag(key, default=True))  # noqa: SLF001 - see above


def _device(settings: ModelSettings) -> Optional[torch.device]:
    if settings.kind == "MODEL":
        return None
    if settings.kind != "GPU":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if torch.version.cuda is None:
            lack = f"PyTorch {torch.__version__} of this environment is built without CUDA"
            cure = (
                "choose an environment with a build for CUDA (execution-env-path of --backend-config=pytorch names it)"
            )
        else:
            lack = f"PyTorch {torch.__version__} finds no GPU that it can use"
            cure = "look at `nvidia-smi` and CUDA_VISIBLE_DEVICES of the model's process"
        raise settings.error(
            f"its instance is on GPU {settings.device}, and {lack}; {cure}, or use KIND_CPU in instance_group"
        )
    if settings.device >= torch.cuda.device_count():
        raise settings.error(
            f"its instance is on GPU {settings.device}, and its process sees {torch.cuda.device_count()}; correct gpus "
            "in instance_group, or CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", settings.device)


def _compile_arguments(settings: ModelSettings) -> Optional[Dict[str, Any]]:
    found = settings.json_object(_COMPILE, '{"dynamic": true}')
    if found and "model" in found:
        raise settings.error("'model' is not an optional parameter for 'torch.compile'")
    return found

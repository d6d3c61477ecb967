"""What a guest needs to know about the model that it runs: the content of the message LOAD.

The host builds a `LoadSpec` for each instance, and the guest reads the same one: `message` packs it, `from_message`
unpacks it. What runs the model is a `PythonCode` or a `NativeCode`; both sides tell them apart by their type.

On the wire it is a mapping of strings, in which numbers are decimal, flags are 0 or 1, and names are joined by a zero
byte. Unknown keys are ignored, and optional ones have a default, so that a key can be added without a new
PROTOCOL_VERSION: custom stubs, which have their own copy of this module, may be older than the host.

The classes have hand-written `__slots__`, because each guest creates them when it starts (see `messages`).

Shared by host and guest; imports `messages` and `wire` alone. Python 3.8+.
"""
# ruff: noqa: RUF023 - the order of the slots is that of the text that `repr` gives

from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping, Optional, Sequence, Tuple, Union

from naiad_stub.messages import Load
from naiad_stub.wire import WireError

_SERVE, _COMPLETE = "serve", "complete"
_SEPARATOR = "\0"
_ARGUMENT = "args."


class _Fields:
    """Compares and prints values by their fields. They are not changed once they are made."""

    __slots__: ClassVar[Tuple[str, ...]] = ()
    __hash__ = None  # type: ignore[assignment] # mappings among the fields have none

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and all(getattr(self, name) == getattr(other, name) for name in self.__slots__)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([f'{name}={getattr(self, name)!r}' for name in self.__slots__])})"


class PythonCode(_Fields):
    """A model in Python.

    Attributes:
        file: Its `model.py`.
        utils_dir: Folder of `triton_python_backend_utils.py`.
        is_shared: Whether the file is that of a shared backend, outside the model's directory.
        environment: Why the model runs in its interpreter, for the error of a failed import; may be empty.
        settings: The settings of its backend (`--backend-config`), which `pb_utils.get_backend_config` returns.
        imports_from_cwd: Whether modules in the working directory can be imported, before all others as in the
            reference.
    """

    __slots__ = ("file", "utils_dir", "is_shared", "environment", "settings", "imports_from_cwd")

    def __init__(
        self,
        file: str,
        utils_dir: str,
        *,
        is_shared: bool = False,
        environment: str = "",
        settings: Optional[Mapping[str, str]] = None,
        imports_from_cwd: bool = False,
    ) -> None:
        self.file = file
        self.utils_dir = utils_dir
        self.is_shared = is_shared
        self.environment = environment
        self.settings: Mapping[str, str] = settings or {}
        self.imports_from_cwd = imports_from_cwd


class NativeCode(_Fields):
    """A backend in C or C++.

    Attributes:
        file: Its library.
        backend: Its name.
        backend_config: Its settings, as JSON.
        environ: The variables that the backend, and programs that it starts, see.
        log_levels: Levels that are logged, as bits.
        auto_completes: Whether the backend is asked to complete the configuration.
        may_set_config: Whether it may have done so before, in a process that ran for that alone.
        lanes: Names of the instances that share the process, each with a thread; empty if the process has the one.
    """

    __slots__ = (
        "file",
        "backend",
        "backend_config",
        "environ",
        "log_levels",
        "auto_completes",
        "may_set_config",
        "lanes",
    )

    def __init__(
        self,
        *,
        file: str,
        backend: str,
        backend_config: str,
        environ: Mapping[str, str],
        log_levels: int,
        auto_completes: bool,
        may_set_config: bool,
        lanes: Sequence[str] = (),
    ) -> None:
        self.file = file
        self.backend = backend
        self.backend_config = backend_config
        self.environ = environ
        self.log_levels = log_levels
        self.auto_completes = auto_completes
        self.may_set_config = may_set_config
        self.lanes = tuple(lanes)


ModelCode = Union[PythonCode, NativeCode]
"""What runs a model."""


class LoadSpec(_Fields):
    """A model, its instance, and the settings of the guest that runs it.

    Attributes:
        code: What runs the model.
        completes_config: Whether the guest only completes the configuration and exits.
        model_name: The model's name.
        model_version: The version.
        model_dir: The model's directory.
        version_dir: The version's directory.
        model_config: The configuration, as JSON.
        instance_name: The instance's name.
        instance_kind: Where it runs: AUTO, GPU, CPU or MODEL.
        device_id: Its GPU; 0 without one.
        inputs: Names of the inputs; messages refer to them by their position.
        outputs: Names of the outputs.
        states: Names of the outputs that are states of sequences.
        is_decoupled: Whether a request may have any number of responses.
        busy_poll_us: See `busy_poll`; 0 for never.
        writes_stacks: Whether the guest writes its threads' stacks when the host asks for them.
        memory_limit: Bytes that the process may allocate; 0 for any number.
        gpu_pools: Bytes of GPU memory that the process may share with others, by the GPU's UUID in hexadecimal digits;
            the guest decides for other GPUs.
    """

    __slots__ = (
        "code",
        "completes_config",
        "model_name",
        "model_version",
        "model_dir",
        "version_dir",
        "model_config",
        "instance_name",
        "instance_kind",
        "device_id",
        "inputs",
        "outputs",
        "states",
        "is_decoupled",
        "busy_poll_us",
        "writes_stacks",
        "memory_limit",
        "gpu_pools",
    )

    def __init__(
        self,
        code: ModelCode,
        *,
        model_name: str,
        model_version: int,
        model_dir: str,
        version_dir: str,
        model_config: str,
        instance_name: str,
        instance_kind: str,
        device_id: int = 0,
        inputs: Sequence[str] = (),
        outputs: Sequence[str] = (),
        states: Sequence[str] = (),
        is_decoupled: bool = False,
        completes_config: bool = False,
        busy_poll_us: int = 0,
        writes_stacks: bool = False,
        memory_limit: int = 0,
        gpu_pools: Optional[Mapping[str, int]] = None,
    ) -> None:
        self.code = code
        self.completes_config = completes_config
        self.model_name = model_name
        self.model_version = model_version
        self.model_dir = model_dir
        self.version_dir = version_dir
        self.model_config = model_config
        self.instance_name = instance_name
        self.instance_kind = instance_kind
        self.device_id = device_id
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.states = tuple(states)
        self.is_decoupled = is_decoupled
        self.busy_poll_us = busy_poll_us
        self.writes_stacks = writes_stacks
        self.memory_limit = memory_limit
        self.gpu_pools = dict(gpu_pools or {})

    def for_instance(self, name: str, kind: str, device_id: int, model_config: str) -> LoadSpec:
        """The same for another instance of the model, whose configuration has changed."""
        return self._with(instance_name=name, instance_kind=kind, device_id=device_id, model_config=model_config)

    def arguments(self) -> Dict[str, str]:
        """The dictionary that a model's `initialize` gets.

        Source: PB src/stub_launcher.cc.
        """
        return {
            "model_config": self.model_config,
            "model_instance_kind": self.instance_kind,
            "model_instance_name": self.instance_name,
            "model_instance_device_id": str(self.device_id),
            "model_repository": self.model_dir,
            "model_version": str(self.model_version),
            "model_name": self.model_name,
        }

    def message(self) -> Load:
        """The message LOAD that carries it."""
        code = self.code
        fields = {
            "mode": _COMPLETE if self.completes_config else _SERVE,
            "model_name": self.model_name,
            "instance_name": self.instance_name,
            "model_file": code.file,
            "model_dir": self.model_dir,
            "version_dir": self.version_dir,
            "decoupled": str(int(self.is_decoupled)),
            "inputs": _SEPARATOR.join(self.inputs),
            "outputs": _SEPARATOR.join(self.outputs),
            "states": _SEPARATOR.join(self.states),
            "model_config": self.model_config,
            "busy_poll_us": str(self.busy_poll_us),
            "writes_stacks": str(int(self.writes_stacks)),
            "memory_limit": str(self.memory_limit),
        }
        if self.gpu_pools:
            fields["gpu_pools"] = _SEPARATOR.join([f"{uuid}:{size}" for uuid, size in self.gpu_pools.items()])
        # Those that are fields already are sent twice: stubs of this PROTOCOL_VERSION pass on these.
        fields.update({_ARGUMENT + name: value for name, value in self.arguments().items()})
        fields.update(_fields_of_native(code) if isinstance(code, NativeCode) else _fields_of_python(code))
        return Load(fields)

    @classmethod
    def from_message(cls, message: Load) -> LoadSpec:
        """What the message carries.

        Raises:
            WireError: If a field is missing or malformed.
        """
        fields = _LoadFields(message.fields)
        return cls(
            _native_code(fields) if "library" in message.fields else _python_code(fields),
            completes_config=fields.choice("mode", _COMPLETE, _SERVE),
            model_name=fields.text("model_name"),
            model_version=fields.number(_ARGUMENT + "model_version"),
            model_dir=fields.text("model_dir"),
            version_dir=fields.text("version_dir"),
            model_config=fields.text("model_config"),
            instance_name=fields.text("instance_name"),
            instance_kind=fields.text(_ARGUMENT + "model_instance_kind"),
            device_id=fields.number(_ARGUMENT + "model_instance_device_id"),
            inputs=fields.names("inputs"),
            outputs=fields.names("outputs"),
            states=fields.names("states", ""),
            is_decoupled=fields.flag("decoupled"),
            busy_poll_us=fields.number("busy_poll_us"),
            writes_stacks=fields.flag("writes_stacks"),
            memory_limit=fields.number("memory_limit", "0"),
            gpu_pools=fields.sizes("gpu_pools"),
        )

    def _with(self, **changes: Any) -> LoadSpec:
        made = LoadSpec.__new__(LoadSpec)
        for name in self.__slots__:
            setattr(made, name, changes[name] if name in changes else getattr(self, name))
        return made


def _fields_of_python(code: PythonCode) -> Dict[str, str]:
    fields = {"utils_dir": code.utils_dir, "shared": str(int(code.is_shared)), "environment": code.environment}
    if code.imports_from_cwd:
        fields["imports_from_cwd"] = "1"
    if code.settings:
        from json import dumps  # most models have no settings

        fields["settings"] = dumps(dict(code.settings))
    return fields


def _fields_of_native(code: NativeCode) -> Dict[str, str]:
    from json import dumps  # needed by no model in Python

    return {
        "library": code.file,
        "backend": code.backend,
        "backend_config": code.backend_config,
        # Escaped: names and values of variables may contain bytes that are not UTF-8.
        "environ": dumps(dict(code.environ)),
        "log_levels": str(code.log_levels),
        "auto_completes": str(int(code.auto_completes)),
        "may_set_config": str(int(code.may_set_config)),
        "lanes": _SEPARATOR.join(code.lanes),
    }


def _python_code(fields: _LoadFields) -> PythonCode:
    return PythonCode(
        fields.text("model_file"),
        fields.text("utils_dir"),
        is_shared=fields.flag("shared"),
        environment=fields.text("environment", ""),
        settings=fields.mapping("settings", ""),
        imports_from_cwd=fields.flag("imports_from_cwd", "0"),
    )


def _native_code(fields: _LoadFields) -> NativeCode:
    return NativeCode(
        file=fields.text("library"),
        backend=fields.text("backend"),
        backend_config=fields.text("backend_config"),
        environ=fields.mapping("environ"),
        log_levels=fields.number("log_levels"),
        auto_completes=fields.flag("auto_completes"),
        may_set_config=fields.flag("may_set_config"),
        lanes=fields.names("lanes", ""),
    )


class _LoadFields:
    """The fields of a LOAD, read as what they are; each method raises a WireError for one that is something else."""

    __slots__ = ("_fields",)

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def text(self, key: str, default: Optional[str] = None) -> str:
        value = self._fields.get(key, default)
        if value is None:
            raise WireError(f"LOAD has no field '{key}'")
        return value

    def number(self, key: str, default: Optional[str] = None) -> int:
        text = self.text(key, default)
        try:
            return int(text)
        except ValueError:
            raise _malformed(key, text, "a number") from None

    def choice(self, key: str, true: str, false: str, default: Optional[str] = None) -> bool:
        text = self.text(key, default)
        if text not in (true, false):
            raise _malformed(key, text, f"'{true}' or '{false}'")
        return text == true

    def flag(self, key: str, default: Optional[str] = None) -> bool:
        return self.choice(key, "1", "0", default)

    def names(self, key: str, default: Optional[str] = None) -> Tuple[str, ...]:
        joined = self.text(key, default)
        return tuple(joined.split(_SEPARATOR)) if joined else ()

    def sizes(self, key: str) -> Dict[str, int]:
        """Numbers by name; empty where the field is missing."""
        pairs = [text.partition(":") for text in self.names(key, "")]
        try:
            return {name: int(size) for name, _, size in pairs}
        except ValueError:
            raise _malformed(key, self.text(key), "names with numbers") from None

    def mapping(self, key: str, default: Optional[str] = None) -> Dict[str, str]:
        text = self.text(key, default)
        if text == default:
            return {}
        from json import loads

        try:
            found = loads(text)
        except ValueError:
            found = None
        if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
            raise _malformed(key, text, "a JSON object of strings")
        return found


def _malformed(key: str, text: str, wanted: str) -> WireError:
    return WireError(f"field '{key}' of LOAD is '{text:.100}', not {wanted}")

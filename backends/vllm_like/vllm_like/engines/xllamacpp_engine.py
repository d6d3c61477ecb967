"""The engine `xllamacpp`: llama.cpp in this process, for GGUF files on a CPU, with continuous batching.

llama.cpp's calls block, so each running request has a thread, which also sends the responses. A request without a free
slot waits in `SlotQueue` and not in llama.cpp, which could not cancel it before it has begun.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from vllm_like import gguf_header, keys, values, weights
from vllm_like.engines import llama_defaults, llama_grammar, llama_http, llama_requests, llama_responses, threads
from vllm_like.engines.base import (
    CallerError,
    Delta,
    EmbeddingRequest,
    Engine,
    Generation,
    OutputSink,
    PathRequest,
    PathSink,
    RankRequest,
    ResultSink,
    Sink,
    check_tokens,
    send_results,
    truncate_vectors,
)
from vllm_like.engines.llama_scores import PromptScorer
from vllm_like.engines.slots import SlotQueue
from vllm_like.settings import Settings

_USED = keys.words("""
model max_model_len max_num_seqs max_num_batched_tokens max_logprobs seed served_model_name runner task convert
pooler_config enable_lora enable_prefix_caching disable_log_stats
""")
_SAME_NAMES = (
    *("kv_unified", "cache_ram_mib", "warmup", "verbosity"),
    *("n_gpu_layers", "main_gpu", "rope_freq_base", "rope_freq_scale", "yarn_orig_ctx"),
)  # options that are llama.cpp's parameters
_ENUMERATIONS = {
    "flash_attn": ("flash_attn_type", "llama_flash_attn_type"),
    "cache_type_k": ("cache_type_k", "ggml_type"),
    "cache_type_v": ("cache_type_v", "ggml_type"),
    "split_mode": ("split_mode", "llama_split_mode"),
    "rope_scaling": ("rope_scaling_type", "llama_rope_scaling_type"),
    "pooling_type": ("pooling_type", "llama_pooling_type"),
}  # llama.cpp's parameter for an option, and the enumeration whose members it takes


def start(settings: Settings, log: Callable[[str], None], on_dead: Callable[[str], None]) -> Engine:  # noqa: ARG001 - cannot fail alone
    """Load a model; `ValueError` if the settings are invalid, or llama.cpp cannot load the file."""
    keys.reject_unknown(settings.options, llama_defaults.OPTIONS, "'engine_options' in model.json")
    path = settings.find("model")
    header = gguf_header.read(Path(path))
    settings.log_ignored(_USED, log)
    return LlamaEngine(settings, path, header, log)


class LlamaEngine(Engine):
    """One model of llama.cpp's server; its HTTP is used for what has no other interface: the tokenizer, and paths."""

    chat_adds_special = True
    takes_grammars = True

    def __init__(self, settings: Settings, path: str, header: gguf_header.Header, log: Callable[[str], None]) -> None:
        try:
            import xllamacpp
        except ImportError as error:
            raise ValueError(
                f"the engine xllamacpp needs a package of that name in '{sys.prefix}', the model's environment: {error}"
            ) from None
        # When llama.cpp aborts, it would have gdb print a backtrace of 90 lines after the line with the reason.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
        self._library = xllamacpp
        self.max_model_len = settings.number("max_model_len", llama_defaults.MAX_MODEL_LEN)
        slots = self._slots = settings.number("max_num_seqs", llama_defaults.MAX_NUM_SEQS)
        self._max_logprobs = settings.number("max_logprobs", 20, least=0)
        self._seed = values.integer(settings.arguments, "seed")
        self._embeds = _is_for_embeddings(settings)
        self.loras = list(settings.loras) if settings.flag("enable_lora") else None
        self._lora_numbers = {name: number for number, name in enumerate(settings.loras)}
        self._http = llama_http.LlamaServer()
        self._pooling = values.pooling(settings.arguments, settings.engine)[0] if self._embeds else ""
        self._vocabulary = header.vocabulary
        llama_defaults.check_sizes(self.max_model_len, slots)
        _check_memory(settings, header, self.max_model_len, slots)
        parameters = self._parameters(settings, path, header, slots)
        self._server = _load(xllamacpp, parameters)
        self._queue = SlotQueue(slots, "llama")
        self._templates = ThreadPoolExecutor(1, "llama-template")  # its thread starts with the first request
        self._is_closed = False
        log(
            f"llama.cpp serves '{path}': {slots} requests at a time of {self.max_model_len} tokens each "
            f"(max_num_seqs, max_model_len), {parameters.cpuparams.n_threads} threads"
            f"{threads.advice(parameters.cpuparams.n_threads)}"
        )

    def _parameters(self, settings: Settings, path: str, header: gguf_header.Header, slots: int) -> Any:
        library = self._library
        options: Dict[str, Any] = {key: llama_defaults.option(settings.options, key) for key in llama_defaults.OPTIONS}
        made = library.CommonParams()
        made.model.path = path
        made.n_parallel = slots
        made.n_ctx = self.max_model_len * slots
        made.cpuparams.n_threads = options["n_threads"] or threads.default_count()
        made.cpuparams_batch.n_threads = options["n_threads_batch"] or made.cpuparams.n_threads
        batch = llama_defaults.batched_tokens(
            header.weights,
            made.cpuparams_batch.n_threads,
            has_gpu=options["n_gpu_layers"] != 0 and _has_gpu(library),
        )
        made.n_batch = settings.number("max_num_batched_tokens", max(batch, slots), llama_defaults.LEAST_BATCH)
        made.n_ubatch = min(made.n_ubatch, made.n_batch)
        # By default ggml's threads wait for each other by spinning, which on a busy machine costs more than it gains.
        made.cpuparams.poll = made.cpuparams_batch.poll = options["poll"]
        options["pooling_type"] = self._pooling or None
        given = {key: value for key, value in options.items() if value is not None}
        for name in _SAME_NAMES:
            if name in given:
                setattr(made, name, given[name])
        for key, (name, enumeration) in _ENUMERATIONS.items():
            if key in given:
                setattr(made, name, _member(library, enumeration, options, key))
        made.cache_prompt = values.flag(settings.arguments, "enable_prefix_caching", default=True)
        if "tensor_split" in given:
            shares, most = given["tensor_split"], len(made.tensor_split)
            if len(shares) > most:
                raise ValueError(
                    f"'tensor_split' in model.json has {len(shares)} numbers; llama.cpp has {most} devices"
                )
            made.tensor_split = [*shares, *[0.0] * (most - len(shares))]
        self._draft(made, options, settings)
        self._takes_images = options["mmproj"] is not None
        if self._takes_images:
            made.mmproj.path = weights.find(options["mmproj"], settings.directory, "mmproj")
            # Some models read an image as one batch.
            made.n_batch = max(made.n_batch, llama_defaults.BATCHED_TOKENS)
            made.n_ubatch = made.n_batch
        if settings.chat_template:
            made.chat_template = settings.chat_template
        if self._embeds:
            made.embedding = True
            made.n_ubatch = made.n_batch = max(made.n_batch, self.max_model_len)  # an input must fit into one batch
            # With one cache per slot, llama.cpp splits inputs of a batch into pieces of equal length and pools only the
            # last piece, which results in wrong vectors.
            made.kv_unified = True
        if settings.loras:
            made.lora_adapters = [library.CommonAdapterLoraInfo(path, 1.0) for path in settings.loras.values()]
            made.lora_init_without_apply = True  # each request selects its own
        made.ui = False
        self._http.configure(made)
        return made

    def _draft(self, made: Any, options: Mapping[str, Any], settings: Settings) -> None:
        """The small model that proposes tokens for the model to check."""
        if options["draft_model"] is None:
            return
        kinds = self._library.common_speculative_type
        made.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        draft = made.speculative.draft
        draft.mparams.path = weights.find(options["draft_model"], settings.directory, "draft_model")
        for name, key in (("n_gpu_layers", "draft_n_gpu_layers"), ("n_min", "draft_min"), ("n_max", "draft_max")):
            if options[key] is not None:
                setattr(draft, name, options[key])

    def generate(self, generation: Generation, sink: Sink) -> None:
        check_tokens(generation.sampling.get("logit_bias", ()), self._vocabulary, "logit_bias")
        body = llama_requests.body(generation, self._seed, self._max_logprobs, takes_images=self._takes_images)
        if self.loras:
            wanted = self._lora_numbers.get(generation.lora)
            body["lora"] = [{"id": number, "scale": float(number == wanted)} for number in self._lora_numbers.values()]
        if generation.chat is not None:
            body.setdefault("seed", secrets.randbits(32))  # so that a text can be generated again
        self._submit(body, generation, sink, first_choice=0)

    def _submit(self, body: Dict[str, Any], generation: Generation, sink: Sink, first_choice: int) -> None:
        """Queue the choices from *first_choice* on, as many as there are slots: llama.cpp rejects a larger `n`.

        Each further part is queued behind the requests that have arrived meanwhile, so a large `n` delays them little.
        """
        part = {**body, "n": min(body["n"] - first_choice, self._slots)}
        if first_choice and "seed" in body:
            part["seed"] = (body["seed"] + first_choice) & 0xFFFFFFFF  # else each part would have the same texts
        run = partial(self._run, body, part, generation, sink, first_choice)
        self._queue.submit(run, partial(_end_if_cancelled, sink), part["n"])

    def _run(
        self, body: Dict[str, Any], part: Dict[str, Any], generation: Generation, sink: Sink, first_choice: int
    ) -> None:
        error: Any = None
        reader: Optional[llama_responses.ChunkReader] = None
        try:
            if not sink.is_cancelled():
                sink.on_start()
                if generation.wants_prompt and generation.chat is None and not first_choice:
                    self._report_prompt(part, generation, sink)
                if generation.constraint is not None and not generation.has_images:
                    error = self._complete_chat(part, generation, sink, first_choice)
                else:
                    reader = llama_responses.ChunkReader(generation, sink, self._queue.poll_cancelled, first_choice)
                    server = self._server
                    handle = server.handle_completions if generation.chat is None else server.handle_chat_completions
                    handle(json.dumps(part), reader.on_chunk)  # a JSON string as argument makes the chunks JSON strings
                    error = reader.error
            is_unparsed = isinstance(error, llama_responses.UnparsedError) and not generation.has_images
            if is_unparsed and reader is not None:
                if any("tool_calls" in parts for parts in reader.said.values()):
                    error = None  # calls that were sent are valid
                    choices = range(first_choice, first_choice + part["n"])
                    sink.push([Delta(number, finish_reason="tool_calls") for number in choices], 0)
                else:  # llama.cpp does not return the text; the same is generated again, with the same seed
                    error = self._complete_chat(part, generation, sink, first_choice, reader.said)
        except ValueError as raised:  # raised for a conversation that its template rejects
            error = llama_responses.template_error(str(raised))
        except Exception as raised:  # noqa: BLE001 - sent to the client
            error = raised.with_traceback(None)  # which refers to this frame, and so to the error
        next_choice = first_choice + part["n"]
        if error is None and next_choice < body["n"] and not sink.is_cancelled():
            self._submit(body, generation, sink, next_choice)
        else:
            sink.end(error)

    def _report_prompt(self, part: Mapping[str, Any], generation: Generation, sink: Sink) -> None:
        prompt, count = generation.prompt, generation.sampling.get("prompt_logprobs")
        text = prompt if isinstance(prompt, str) else self.decode(prompt)
        if count is None:
            sink.on_prompt(text, None)
            return
        tokens = prompt if isinstance(prompt, list) else self.encode(prompt, adds_special=True)[0]
        llama_responses.check_length(len(tokens), self.max_model_len)

        def on_token(place: int) -> bool:
            self._queue.poll_cancelled()
            sink.on_progress(place)
            return sink.is_cancelled()

        options = {"lora": part["lora"]} if "lora" in part else {}
        first = {tokens[0]: {"logprob": None, "rank": None, "decoded_token": self.decode(tokens[:1])}}
        sink.on_prompt(text, [first, *self._scorer.score(tokens, count, options, on_token)])

    @cached_property
    def _scorer(self) -> PromptScorer:
        (whole_token, *_), _ = self.encode("a", adds_special=False)
        return PromptScorer(self._server.handle_completions, self._vocabulary, whole_token)

    def _complete_chat(
        self,
        part: Mapping[str, Any],
        generation: Generation,
        sink: Sink,
        first_choice: int,
        said: Optional[llama_responses.Said] = None,
    ) -> Optional[Exception]:
        """Complete the prompt of a chat, without llama.cpp's parser for the answer; return the error if that fails.

        With *said*, the sink has got these parts of the text of each choice already, and gets what follows.
        """
        assert generation.chat is not None
        prompt = self.render(generation.chat)
        kept = {name: value for name, value in part.items() if name not in generation.chat}
        opening = ""
        if generation.constraint is not None and "grammar" in kept:
            tag = llama_grammar.opened_tag(prompt)
            opening = f"<{tag}>" if tag else ""
            may_reason = "</think>" in self._chat_template
            kept["grammar"] = llama_grammar.with_reasoning(kept["grammar"], prompt, may_reason=may_reason)
        if "top_logprobs" in kept:
            kept["logprobs"] = kept.pop("top_logprobs")
        plain = replace(generation, chat=None, prompt=prompt)
        reader = llama_responses.ChunkReader(plain, sink, self._queue.poll_cancelled, first_choice, opening, said)
        self._server.handle_completions(json.dumps({**kept, "prompt": prompt}), reader.on_chunk)
        return reader.error

    @cached_property
    def _chat_template(self) -> str:
        return str(self.tokenizer_info()["chat_template"])

    def kv_cache_usage(self, tokens: int) -> float:
        return min(tokens / (self.max_model_len * self._slots), 1.0)

    def embed(self, request: EmbeddingRequest, sink: ResultSink) -> None:
        if not self._embeds:
            raise CallerError("this model does not support embeddings: 'runner' in its model.json is not 'pooling'")
        for item in request.inputs:
            check_tokens(item if isinstance(item, list) else (), self._vocabulary, "input")
        body: Dict[str, Any] = {"input": list(request.inputs), "encoding_format": "float"}

        def read(document: Dict[str, Any]) -> List[List[float]]:
            ordered = sorted(document["data"], key=lambda each: each["index"])
            return truncate_vectors([each["embedding"] for each in ordered], request.dimensions)

        self._submit_pooling("handle_embeddings", body, read, sink)

    def rank(self, request: RankRequest, sink: ResultSink) -> None:
        """Queue a request for scores: by the model's own head if it has one, else by its vectors."""
        if self._pooling != "rank":
            super().rank(request, sink)
            return
        body = {"query": request.query, "documents": list(request.documents)}

        def read(document: Dict[str, Any]) -> List[float]:
            ordered = sorted(document["results"], key=lambda each: each["index"])
            return [float(each["relevance_score"]) for each in ordered]

        self._submit_pooling("handle_rerank", body, read, sink)

    def _submit_pooling(
        self, handler: str, body: Dict[str, Any], read: Callable[[Dict[str, Any]], List[Any]], sink: ResultSink
    ) -> None:
        """Queue a request that llama.cpp answers with one document, of which *read* makes what the sink gets."""

        def compute() -> Tuple[List[Any], int]:
            document = llama_responses.checked(getattr(self._server, handler)(body))
            return read(document), document["usage"]["prompt_tokens"]

        self._queue.submit(partial(send_results, sink, compute), lambda: False)

    def forward(self, request: PathRequest, sink: PathSink) -> None:
        """Queue a request to llama.cpp's own server; one for a prompt needs no slot."""
        run = partial(self._http.forward, request, sink)
        if request.path == "/apply-template":
            self._templates.submit(run)
        else:
            self._queue.submit(run, partial(_end_if_cancelled, sink))

    def encode(self, text: str, *, adds_special: bool) -> Tuple[List[int], List[str]]:
        tokens = self._tokens(text, adds_special=adds_special, parses_special=True)
        return [token["id"] for token in tokens], [llama_http.piece_text(token["piece"]) for token in tokens]

    def is_plain_text(self, text: str) -> bool:
        """Whether a text has no control tokens, which llama.cpp leaves out of its output."""
        one, other = (self._tokens(text, adds_special=False, parses_special=parses) for parses in (False, True))
        return one == other

    def _tokens(self, text: str, *, adds_special: bool, parses_special: bool) -> List[Dict[str, Any]]:
        asked = {"content": text, "add_special": adds_special, "parse_special": parses_special, "with_pieces": True}
        found: List[Dict[str, Any]]
        found = self._http.ask("/tokenize", asked)["tokens"]
        return found

    def decode(self, tokens: Sequence[int]) -> str:
        check_tokens(tokens, self._vocabulary, "tokens")
        asked = {"tokens": list(tokens)}
        return str(self._http.ask("/detokenize", asked)["content"])

    def render(self, conversation: Dict[str, Any]) -> str:
        return str(self._http.ask("/apply-template", conversation)["prompt"])

    def tokenizer_info(self) -> Dict[str, Any]:
        """The special tokens and the chat template of the GGUF file, or of `model.json`."""
        given = self._http.ask("/props")
        special = {name: given.get(name) or None for name in ("bos_token", "eos_token")}
        return {"tokenizer_class": "llama.cpp", **special, "chat_template": given.get("chat_template") or None}

    def check_health(self) -> None:
        """Raise an exception after `shutdown`; llama.cpp runs in this process and cannot fail alone."""
        if self._is_closed:
            raise RuntimeError("the engine was shut down")

    def shutdown(self) -> None:
        self._is_closed = True
        self._queue.close()
        self._templates.shutdown()
        self._server = None


def _has_gpu(library: Any) -> bool:
    cpu = library.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_CPU
    return any(device["type"] != cpu for device in library.get_device_info())


def _end_if_cancelled(sink: OutputSink) -> bool:
    """End the output of a cancelled request; return whether it was cancelled."""
    if not sink.is_cancelled():
        return False
    sink.end()
    return True


def _is_for_embeddings(settings: Settings) -> bool:
    runner, task, convert = (str(settings.arguments.get(key)).lower() for key in ("runner", "task", "convert"))
    return "pooling" in (runner, task) or bool({"embed", "embedding"} & {task, convert})


def _member(library: Any, enumeration: str, options: Mapping[str, Any], key: str) -> Any:
    """The member of an enumeration of llama.cpp that an option names; the installed release may lack it."""
    kind, prefix = getattr(library, enumeration), f"{enumeration.upper()}_"
    found = getattr(kind, prefix + str(options[key]).upper(), None)
    if found is None:
        known = sorted(name[len(prefix) :].lower() for name in dir(kind) if name.startswith(prefix))
        raise ValueError(f"'{key}' in model.json is '{options[key]}'; it must be one of {', '.join(known)}")
    return found


def _load(library: Any, parameters: Any) -> Any:
    try:
        return library.Server(parameters)
    except RuntimeError as error:
        first = str(error)
    # Only the native log, which is off, has the reason. Load again with the log on, and quote its errors.
    parameters.verbosity = 2
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            return library.Server(parameters)
        except RuntimeError:
            pass
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        file.seek(0)
        lines = file.read().decode("utf-8", "replace").splitlines()
    raise ValueError(f"llama.cpp cannot load '{parameters.model.path}': {llama_responses.load_error(lines) or first}")


def _check_memory(settings: Settings, header: gguf_header.Header, length: int, slots: int) -> None:
    """`ValueError` unless the machine has the memory for the cache; the kernel would kill the process instead."""
    if llama_defaults.option(settings.options, "n_gpu_layers"):
        return  # the cache is in the memory of GPUs
    needed, memory = llama_defaults.cache_bytes(length, slots, header.cache_numbers), llama_defaults.memory_bytes()
    if needed > memory:
        raise ValueError(
            f"cannot allocate a cache of {length} x {slots} tokens ('max_model_len', 'max_num_seqs' in model.json): it "
            f"has {needed / 1e9:.1f} GB, and the machine {memory / 1e9:.1f} GB; lower one of them"
        )

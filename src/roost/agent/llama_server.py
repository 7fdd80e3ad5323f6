"""llama.cpp's own server out of the xllamacpp package, behind the command line of `llama-server`.

`python -m roost.agent.llama_server -m MODEL --port P …`; the key comes in `LLAMA_API_KEY`. Measured
with
xllamacpp 2026.10.11549: it listens before it loads (`/health` says 503, then 200), and writes
llama.cpp's own
messages, so that the adapter reads both programs alike. Two things differ from the real one. An
unknown flag is
refused in the same words, and so is one that is real but not in the table below. SIGTERM ends the
process
at once with exit status 0, also with requests in flight: the agent drains first, and the real
program would hang
until its clients hang up.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn

# A params object has no useful type: xllamacpp is a compiled module without annotations.
Setter = Callable[[Any, str], None]


class Invalid(Exception):
    """A command line that cannot be used."""


def _number(value: str) -> int:
    return int(value)


def _attribute(name: str, convert: Callable[[str], Any] = str) -> Setter:
    def put(params: Any, value: str) -> None:
        setattr(params, name, convert(value))

    return put


def _constant(name: str, value: Any) -> Setter:
    def put(params: Any, _: str) -> None:
        setattr(params, name, value)

    return put


def _model(params: Any, value: str) -> None:
    params.model.path = value


def _projector(params: Any, value: str) -> None:
    params.mmproj.path = value


def _sampling(name: str, convert: Callable[[str], Any]) -> Setter:
    def put(params: Any, value: str) -> None:
        setattr(params.sampling, name, convert(value))

    return put


def _rerank(params: Any, _: str) -> None:
    params.embedding = True
    params.pooling_type = _xllamacpp().llama_pooling_type.LLAMA_POOLING_TYPE_RANK


def _loading(mode: str) -> Setter:
    def put(params: Any, _: str) -> None:
        params.load_mode = _xllamacpp().llama_load_mode[f"LLAMA_LOAD_MODE_{mode}"]

    return put


def _threads(params: Any, value: str) -> None:
    params.cpuparams.n_threads = int(value)


def _batch_threads(params: Any, value: str) -> None:
    params.cpuparams_batch.n_threads = int(value)


def _layers(params: Any, value: str) -> None:
    params.n_gpu_layers = {"auto": -1, "all": -2}.get(value) or int(value)


def _device(_: Any, value: str) -> None:
    if value != "none":
        raise ValueError("this build has no device but the CPU")


def _choice(name: str, enum: str, prefix: str, spelt: dict[str, str] | None = None) -> Setter:
    def put(params: Any, value: str) -> None:
        kind = getattr(_xllamacpp(), enum)
        key = prefix + ((spelt or {}).get(value) or value).upper()
        try:
            setattr(params, name, kind[key])
        except KeyError:
            known = ", ".join(m.name.removeprefix(prefix).lower() for m in kind)
            raise ValueError(f"unknown value {value!r}, known are {known}") from None

    return put


_FLASH = {"on": "enabled", "off": "disabled", "1": "enabled", "0": "disabled"}

WITH_VALUE: dict[str, Setter] = {
    "-m --model": _model,
    "-a --alias": _attribute("model_alias", lambda v: {a.strip() for a in v.split(",")}),
    "--host": _attribute("hostnames", lambda v: [v]),
    "--port": _attribute("port", _number),
    "-c --ctx-size": _attribute("n_ctx", _number),
    "-np --parallel": _attribute("n_parallel", _number),
    "-b --batch-size": _attribute("n_batch", _number),
    "-ub --ubatch-size": _attribute("n_ubatch", _number),
    "-n --predict --n-predict": _attribute("n_predict", _number),
    "--keep": _attribute("n_keep", _number),
    "-t --threads": _threads,
    "-tb --threads-batch": _batch_threads,
    "--threads-http": _attribute("n_threads_http", _number),
    "-ngl --gpu-layers --n-gpu-layers": _layers,
    "-dev --device": _device,
    "-to --timeout": _attribute("timeout_read", _number),
    "-cram --cache-ram": _attribute("cache_ram_mib", _number),
    "-lv --verbosity --log-verbosity": _attribute("verbosity", _number),
    "--chat-template": _attribute("chat_template"),
    "--api-prefix": _attribute("api_prefix"),
    "--rope-freq-base": _attribute("rope_freq_base", float),
    "--rope-freq-scale": _attribute("rope_freq_scale", float),
    "--pooling": _choice("pooling_type", "llama_pooling_type", "LLAMA_POOLING_TYPE_"),
    "-fa --flash-attn": _choice(
        "flash_attn_type", "llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", _FLASH
    ),
    "-ctk --cache-type-k": _choice("cache_type_k", "ggml_type", "GGML_TYPE_"),
    "-ctv --cache-type-v": _choice("cache_type_v", "ggml_type", "GGML_TYPE_"),
    "--load-mode": _choice("load_mode", "llama_load_mode", "LLAMA_LOAD_MODE_"),
    "--reasoning-format": _choice(
        "reasoning_format", "common_reasoning_format", "COMMON_REASONING_FORMAT_"
    ),
    "-mm --mmproj": _projector,
    "-s --seed": _sampling("seed", _number),
    "--temp --temperature": _sampling("temp", float),
    "--top-k": _sampling("top_k", _number),
    "--top-p": _sampling("top_p", float),
    "--min-p": _sampling("min_p", float),
    "--cache-reuse": _attribute("n_cache_reuse", _number),
    "--sleep-idle-seconds": _attribute("sleep_idle_seconds", _number),
    "-fit --fit": _attribute("fit_params", lambda v: {"on": True, "off": False}[v]),
}

ALONE: dict[str, Setter] = {
    "--metrics": _constant("endpoint_metrics", True),
    "--slots": _constant("endpoint_slots", True),
    "--no-slots": _constant("endpoint_slots", False),
    "--props": _constant("endpoint_props", True),
    "--embedding --embeddings": _constant("embedding", True),
    "--rerank --reranking": _rerank,
    "--no-mmap": _loading("NONE"),
    "--mlock": _loading("MMAP_MLOCK"),
    "--warmup": _constant("warmup", True),
    "--no-warmup": _constant("warmup", False),
    "--ui --webui": _constant("ui", True),
    "--no-ui --no-webui": _constant("ui", False),
    "--offline": _constant("offline", True),
    "--jinja": _constant("use_jinja", True),
    "--no-jinja": _constant("use_jinja", False),
    "-cb --cont-batching": _constant("cont_batching", True),
    "-nocb --no-cont-batching": _constant("cont_batching", False),
    "--context-shift": _constant("ctx_shift", True),
    "--no-context-shift": _constant("ctx_shift", False),
    "-kvu --kv-unified": _constant("kv_unified", True),
    "--check-tensors": _constant("check_tensors", True),
    "--swa-full": _constant("swa_full", True),
}


def settings(argv: Sequence[str]) -> list[tuple[Setter, str, str]]:
    """What the command line sets: (how, value, flag), in its order."""
    with_value = {name: put for names, put in WITH_VALUE.items() for name in names.split()}
    alone = {name: put for names, put in ALONE.items() for name in names.split()}
    found: list[tuple[Setter, str, str]] = []
    rest = iter(argv)
    for flag in rest:
        if flag in alone:
            found.append((alone[flag], "", flag))
        elif flag in with_value:
            value = next(rest, None)
            if value is None:
                raise Invalid(
                    f'error while handling argument "{flag}": expected value for argument'
                )
            found.append((with_value[flag], value, flag))
        else:
            raise Invalid(f"error: invalid argument: {flag}")
    if not any(put is _model for put, _, _ in found):
        # Without a model the real one becomes a router that starts happily and serves nothing.
        raise Invalid("error: -m, --model is required")
    return found


def _xllamacpp() -> ModuleType:
    try:
        import xllamacpp
    except ImportError as cause:
        raise Invalid(f"error: the package xllamacpp cannot be imported: {cause}") from None
    module: ModuleType = xllamacpp
    return module


def main(argv: Sequence[str]) -> NoReturn:
    """Serve until SIGTERM."""
    try:
        wanted = settings(argv)
        params = _xllamacpp().CommonParams()
        params.port = 8080
        for put, value, flag in wanted:
            try:
                put(params, value)
            except (ValueError, KeyError, OverflowError, TypeError) as cause:
                raise Invalid(f'error while handling argument "{flag}": {cause}') from None
        if key := os.environ.get("LLAMA_API_KEY"):
            params.api_keys = [key]
    except Invalid as cause:
        sys.stderr.write(f"{cause}\n")
        _leave(1)
    _serve(params)


def _serve(params: Any) -> NoReturn:
    # Until it listens, signals do what they do by default: loading holds the interpreter, and a
    # handler of ours, or Python's own of SIGINT, would run only afterwards. Then the handler writes
    # to a pipe: the signal may reach any of llama.cpp's threads, and only the pipe wakes this one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        # Kept: letting go of it would stop it, and wait for its threads.
        _running = _xllamacpp().Server(params)
    except RuntimeError:
        # llama.cpp says why, from a thread of its own that only the orderly way out waits for. The
        # alarm
        # is for the case that it waits for ever.
        signal.alarm(10)
        sys.exit(1)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    while not os.read(reader, 1):
        pass
    # As the real one says it: who reads the log knows that a signal ended it.
    sys.stderr.write("cleaning up before exit...\n")
    _leave(0)


def _leave(status: int) -> NoReturn:
    # The interpreter's own way out waits for llama.cpp's threads, minutes at worst.
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main(sys.argv[1:])

"""What a fake engine writes into its log: lines such as its engine writes, and none of a prompt.

llama.cpp and vLLM in the manner of what they print; SGLang as its source reads. The first line says
what it is, so that nobody takes it for a real one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How one engine words its log."""

    loading: str
    ready: str
    request: str
    stopping: str

    def begin(self, *, dialect: str, model: str) -> str:
        """At the start."""
        return (
            f"fake engine: speaks as {dialect}, no model behind it\n"
            f"{self.loading.format(model=model)}"
        )


_LLAMA_CPP: Final = Manner(
    loading="srv    load_model: loading model '{model}'",
    ready="main: server is listening on http://{host}:{port}",
    request="srv  log_server_r: done request: {method} {path} {peer} {status}",
    stopping="srv    operator(): cleaning up before exit...",
)
_VLLM: Final = Manner(
    loading="(EngineCore pid=0) INFO Starting to load model {model}...",
    ready="(APIServer pid=0) INFO Starting vLLM server on http://{host}:{port}\n"
    "(APIServer pid=0) INFO:     Application startup complete.",
    request='(APIServer pid=0) INFO:     {peer} - "{method} {path} HTTP/1.1" {status}',
    stopping="(APIServer pid=0) INFO:     Shutting down",
)
_SGLANG: Final = Manner(
    loading="Load weight begin. model={model}",
    ready="Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)\n"
    "The server is fired up and ready to roll!",
    request='INFO:     {peer} - "{method} {path} HTTP/1.1" {status}',
    stopping="SIGTERM received. Draining requests and shutting down...",
)

MANNERS: Final[Mapping[str, Manner]] = {
    "llama.cpp": _LLAMA_CPP,
    "llama.cpp-old": _LLAMA_CPP,
    "vllm": _VLLM,
    "sglang": _SGLANG,
}
"""By dialect."""

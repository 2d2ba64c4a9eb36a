"""A server to measure: its address, model and key."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kvgym.errors import ConfigError, shown

APIS = {"completions": "/completions", "chat": "/chat/completions"}
"""Path of an API below ``/v1``, by its name."""

OWNER = "kvgym server mock"
"""Owner of the model in ``/v1/models`` of :mod:`kvgym.servers.endpoint.mock`, by which a client recognises it."""

KEY_VARIABLE = "OPENAI_API_KEY"
"""Environment variable with the key, unless another is named."""


@dataclass(frozen=True)
class Target:
    """An OpenAI-compatible server.

    Attributes:
        base: address up to ``/v1``.
        api: a name of :data:`APIS`.
        model: name of the model; "" = not known yet.
        key: API key, "" for none; it is in no text of this object.
        key_variable: the environment variable of the key, for messages.
    """

    base: str
    api: str
    model: str = ""
    key: str = field(default="", repr=False)
    key_variable: str = KEY_VARIABLE

    @classmethod
    def of(cls, url: str, *, api: str | None = None, **fields: Any) -> Target:
        """Return the server at an address.

        Args:
            url: ``http://localhost:8000``, with or without ``/v1``, or the whole address of a kind of request.
            api: a name of :data:`APIS`; None = as the address says, else completions.
            **fields: other attributes.

        Raises:
            ConfigError: this is no such address, or names another API; or no such API.
        """
        if api is not None and api not in APIS:
            raise ConfigError(f"--api {api}: valid are {', '.join(APIS)}")
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ConfigError(
                "the URL has a user name, password, query or fragment, which would be written into files; give a key "
                f"in an environment variable ({KEY_VARIABLE}, or --api-key-env NAME)"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
            raise ConfigError(
                f"URL {shown(url)}: expected http://HOST:PORT or https://HOST, as in http://localhost:8000"
            )
        path = parts.path.rstrip("/")
        named = next((name for name in ("chat", "completions") if path.endswith(APIS[name])), None)
        if named is not None:
            path = path.removesuffix(APIS[named])
        if named is not None and api not in (None, named):
            raise ConfigError(
                f"--api {api} and a URL of {APIS[named]}: give the address up to /v1, or leave --api out"
            )
        path = path if named is not None or re.search(r"/v\d\w*(/|$)", path) else f"{path}/v1"
        found = cls(f"{parts.scheme}://{parts.netloc}{path}", named or api or "completions", **fields)
        if not (found.key.isascii() and found.key.isprintable()):  # an error of a header would show it
            raise ConfigError(
                f"environment variable {found.key_variable}: its value is not a key of printable letters"
            )
        return found

    @property
    def url(self) -> str:
        """Address of requests."""
        return self.base + APIS[self.api]

    @property
    def metrics_url(self) -> str:
        """Address of the server's counters."""
        return re.sub(r"/v\d\w*$", "", self.base) + "/metrics"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of requests."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def body(self, parts: Sequence[str], output_len: int, *, ignore_eos: bool) -> dict[str, Any]:
        """Return the body of a request for a streamed answer of a number of tokens.

        Args:
            parts: the prompt: what was sent and answered by turns, from the first message to the one to be answered.
            output_len: tokens.
            ignore_eos: whether the answer goes on until then.
        """
        content: dict[str, Any] = {"prompt": "".join(parts)}
        if self.api == "chat":
            roles = itertools.cycle(("user", "assistant"))
            content = {
                "messages": [
                    {"role": role, "content": text} for role, text in zip(roles, parts, strict=False)
                ]
            }
        whole = {"ignore_eos": True} if ignore_eos else {}
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self.model, **content, "max_tokens": output_len, **stream, **whole}

    def plain(self, text: str, limit: int = 120) -> str:
        """Return a server's text in one short line, without the key."""
        if self.key:
            text = text.replace(self.key, "***")
        return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:limit]


@dataclass(frozen=True)
class Counters:
    """Counters of a server, NaN where it has none.

    Attributes:
        evictions: evictions (vLLM: preemptions) since its start.
        kv_capacity: KV memory, tokens.
        answered: requests that it has answered since its start.
    """

    evictions: float = math.nan
    kv_capacity: float = math.nan
    answered: float = math.nan

    @classmethod
    def of(cls, text: str) -> Counters:
        """Read counters in Prometheus' form, under the names of vLLM."""
        memory = 0
        for labels in re.findall(r"^vllm:cache_config_info{([^}]*)}", text, re.MULTILINE):
            found = dict(re.findall(r'(\w+)="(\d{1,12})"', labels))
            memory += int(found.get("block_size", 0)) * int(found.get("num_gpu_blocks", 0))
        evictions, answered = (_total(text, name) for name in ("num_preemptions", "request_success"))
        return cls(evictions, memory or math.nan, answered)


def _total(text: str, name: str) -> float:
    """Return the sum of a counter of vLLM over its labels, NaN if it is not there or no count."""
    found = re.findall(rf"^vllm:{name}_total(?:{{[^}}]*}})? (\S+)", text, re.MULTILINE)
    total = math.nan
    with contextlib.suppress(ValueError):
        total = sum(map(float, found)) if found else math.nan
    return total if 0 <= total <= 2**53 else math.nan

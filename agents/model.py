"""The model client: any OpenAI-compatible endpoint, structured output, and the limits that keep it an aid and never a burden."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.budget import Breaker, Budget, Ledger, Usage

if TYPE_CHECKING:
    from openai import OpenAI

__all__ = ["Answer", "Endpoint", "Message", "ModelClient", "ModelUnavailable", "read_endpoint"]

CHARACTERS_PER_TOKEN = 3
CACHE_ENTRIES = 1_000

Message = dict[str, str]


class ModelUnavailable(Exception):
    """No answer is to be had now; the message says why, `usage` what trying took. The deterministic answer stands."""

    def __init__(self, why: str, usage: Usage | None = None) -> None:
        super().__init__(why)
        self.usage = usage or Usage()


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the model is and how long to bother with it. `base_url` ends in /v1; without a key one is not sent."""

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    timeout_seconds: float = 30.0
    attempts: int = 3
    concurrency: int = 2
    max_answer_tokens: int = 700


@dataclass(frozen=True, slots=True)
class Answer:
    """A parsed JSON object, and what it took."""

    document: Mapping[str, Any]
    usage: Usage
    seconds: float
    cached: bool = False


def prompt_tokens(messages: Sequence[Message]) -> int:
    """About how many tokens they are."""
    return sum(len(message["content"]) for message in messages) // CHARACTERS_PER_TOKEN


def first_object(text: str) -> dict[str, Any]:
    """The first JSON object in `text` (models wrap them in prose and fences). Raises ValueError where there is none."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            found, _ = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start = text.find("{", start + 1)
            continue
        if isinstance(found, dict):
            return found
        start = text.find("{", start + 1)
    raise ValueError("no whole JSON object in the answer" if text else "the endpoint answered without text")


class ModelClient:
    """Asks one endpoint. Safe to use from several threads."""

    def __init__(
        self,
        endpoint: Endpoint,
        budget: Budget | None = None,
        *,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.budget = budget or Budget()
        self.ledger = Ledger()
        self.breaker = Breaker()
        self._clock, self._sleep, self._rng = clock, sleep, rng or random.Random()
        self._slots = threading.BoundedSemaphore(endpoint.concurrency)
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Answer] = OrderedDict()
        self._schema_refused = False
        self._client: OpenAI | None = None

    def _connect(self) -> OpenAI:
        if self._client is None:
            from openai import OpenAI

            self._client = OpenAI(
                base_url=self.endpoint.base_url,
                api_key=self.endpoint.api_key or "none",
                timeout=self.endpoint.timeout_seconds,
                max_retries=0,
            )
        return self._client

    def ask(
        self,
        messages: Sequence[Message],
        schema: Mapping[str, Any],
        *,
        incident: str,
        key: str | None = None,
        temperature: float = 0.0,
    ) -> Answer:
        """One JSON object that should follow `schema` (the caller checks it). `key` identifies the question for the cache.

        Raises ModelUnavailable where budget, breaker, endpoint or answer stand in the way.
        """
        with self._lock:
            if key is not None and key in self._cache:
                self._cache.move_to_end(key)
                kept = self._cache[key]
                return Answer(kept.document, Usage(), 0.0, cached=True)
            refusal = self._refusal(incident, prompt_tokens(messages))
        if refusal:
            raise ModelUnavailable(refusal)
        if not self._slots.acquire(timeout=self.endpoint.timeout_seconds):
            raise ModelUnavailable(f"all {self.endpoint.concurrency} places at the endpoint stayed taken")
        try:
            answer = self._ask_with_retries(messages, schema, incident, temperature)
        finally:
            self._slots.release()
        if key is not None:
            with self._lock:
                self._cache[key] = answer
                while len(self._cache) > CACHE_ENTRIES:
                    self._cache.popitem(last=False)
        return answer

    def _ask_with_retries(
        self, messages: Sequence[Message], schema: Mapping[str, Any], incident: str, temperature: float
    ) -> Answer:
        import openai

        began = self._clock()
        trouble, spent = "no attempt was made", Usage()
        for attempt in range(self.endpoint.attempts):
            if attempt:
                # Answers that could not be read cost as much as those that could.
                with self._lock:
                    refusal = self._refusal(incident, prompt_tokens(messages))
                if refusal:
                    raise ModelUnavailable(f"{trouble}; then {refusal}", spent)
                self._sleep(min(8.0, 0.5 * 2**attempt) * (0.5 + self._rng.random()))
            try:
                text, usage = self._complete(messages, schema, temperature)
            except openai.BadRequestError as error:
                if not self._schema_refused:
                    # Not every server knows json_schema; ask it in words from now on.
                    self._schema_refused = True
                    trouble = "the endpoint refused a JSON schema"
                    continue
                self._failed()
                raise ModelUnavailable(f"the endpoint refuses the request: {str(error)[:200]}", spent) from None
            except (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError) as error:
                self._failed()
                raise ModelUnavailable(f"the endpoint refuses us: {str(error)[:200]}", spent) from None
            except openai.APITimeoutError:
                # Whoever was asked may still be thinking, and charge for it.
                trouble = f"timed out after {self.endpoint.timeout_seconds:g} s"
                spent += self._spend(incident, Usage(prompt_tokens(messages)))
                self._failed()
                continue
            except openai.OpenAIError as error:
                trouble = f"{type(error).__name__}: {str(error)[:200]}"
                self._failed()
                continue
            except ValueError as error:
                trouble = f"unreadable answer: {str(error)[:200]}"
                continue
            spent += self._spend(incident, usage)
            try:
                document = first_object(text)
            except ValueError as error:
                trouble = str(error)
                continue
            with self._lock:
                self.breaker = self.breaker.succeeded()
            return Answer(document, spent, self._clock() - began)
        raise ModelUnavailable(trouble, spent)

    def _refusal(self, incident: str, tokens: int) -> str | None:
        """Why a prompt of `tokens` may not be sent now, or None. The lock is held."""
        now, expected = self._clock(), tokens + self.endpoint.max_answer_tokens
        return self.breaker.refusal(now) or self.ledger.refusal(self.budget, incident, expected, now)

    def _spend(self, incident: str, usage: Usage) -> Usage:
        with self._lock:
            self.ledger.spend(incident, usage, self._clock())
        return usage

    def _failed(self) -> None:
        with self._lock:
            self.breaker = self.breaker.failed(self._clock())

    def _complete(self, messages: Sequence[Message], schema: Mapping[str, Any], temperature: float) -> tuple[str, Usage]:
        arguments: dict[str, Any] = {}
        asked = list(messages)
        if self._schema_refused:
            words = f"Answer with one JSON object that follows this schema, and nothing else:\n{json.dumps(schema)}"
            asked = [*asked[:-1], {**asked[-1], "content": f"{asked[-1]['content']}\n\n{words}"}]
        else:
            arguments["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": True},
            }
        made: Any = self._connect().chat.completions.create(
            model=self.endpoint.model,
            messages=asked,  # type: ignore[arg-type]
            temperature=temperature,
            max_tokens=self.endpoint.max_answer_tokens,
            **arguments,
        )
        text = str(made.choices[0].message.content or "") if made.choices and made.choices[0].message is not None else ""
        if made.usage is not None:
            return text, Usage(int(made.usage.prompt_tokens or 0), int(made.usage.completion_tokens or 0))
        return text, Usage(prompt_tokens(asked), len(text) // CHARACTERS_PER_TOKEN)

    def refusal(self) -> str | None:
        """Why a question would not be put now (a breaker that is open, a day's budget that is spent), or None."""
        now = self._clock()
        with self._lock:
            return self.breaker.refusal(now) or self.ledger.refusal(self.budget, "", 0, now)

    @property
    def state(self) -> str:
        """One line for /readyz and the dashboard."""
        refusal = self.refusal()
        return f"off for now: {refusal}" if refusal else f"{self.endpoint.model} at {self.endpoint.base_url}"


def read_endpoint(base_url: str, model: str | None, api_key_file: Path | None) -> Endpoint:
    """The endpoint that settings name. Raises ModelUnavailable with one line that says what to set."""
    if not base_url.startswith(("http://", "https://")):
        raise ModelUnavailable(f"PITSTOP_LLM_BASE_URL has to be an http(s) address that ends in /v1, not {base_url[:80]!r}")
    if not model:
        raise ModelUnavailable("PITSTOP_LLM_BASE_URL is set; set PITSTOP_LLM_MODEL too")
    key = None
    if api_key_file is not None:
        try:
            key = api_key_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ModelUnavailable(f"PITSTOP_LLM_API_KEY_FILE cannot be read: {error}") from None
    return Endpoint(base_url.rstrip("/"), model, key or None)

"""An open-loop load on any server with OpenAI's interface: requests arrive when a Poisson process says so, whether the
ones before are done or not, and every time counts from that arrival."""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from ...support.errors import TilewrightError, UsageError

#: median and spread (of the logarithm) of tokens in prompts and answers, and the most of each
MIXES = {
    "turns": ((60, 0.6, 400), (60, 0.5, 200)),
    "chat": ((180, 0.9, 2000), (160, 0.7, 800)),
    "summary": ((1200, 0.5, 3000), (120, 0.4, 400)),
    "code": ((500, 0.8, 2500), (240, 0.6, 1000)),
}
#: words that are one token nearly everywhere
_WORDS = (
    *("time", "people", "way", "water", "day", "part", "word", "number", "place", "work", "year", "sound", "light"),
    *("point", "world", "house", "picture", "animal", "mother", "answer", "study", "plant", "food", "sun", "city"),
    *("tree", "farm", "story", "sea", "night", "life", "paper", "group", "music", "color", "table", "river"),
)


@dataclass(frozen=True)
class Asked:
    """One request: seconds from the start of the run, tokens of its prompt and of its answer, a seed of its text."""

    at: float
    prompt: int
    output: int
    seed: int


def schedule(mix: str, rate: float, count: int, seed: int, texts: int = 0) -> list[Asked]:
    """Requests of a length mix (a name of `MIXES`, or N:M tokens), `rate` of them a second on average. With another
    number of `texts` they differ in their words alone.

    >>> [(r.prompt, r.output) for r in schedule("100:20", 5.0, 2, seed=0)]
    [(100, 20), (100, 20)]

    UsageError for a mix that is not known.
    """
    random_, words = random.Random(f"{mix} {seed}"), random.Random(f"{seed} {texts}")
    fixed = mix.split(":")
    known = len(fixed) == 2 and all(f.isdigit() and 0 < int(f) < 10**6 for f in fixed)
    if not known and mix not in MIXES:
        raise UsageError(f"there is no mix {mix!r}", hint=f"one of {', '.join(MIXES)}, or lengths as 512:128")
    found, at = [], 0.0
    for _ in range(count):
        if known:
            prompt, output = int(fixed[0]), int(fixed[1])
        else:
            prompt, output = (
                min(max(round(median * math.exp(random_.gauss(0, spread))), 4), most)
                for median, spread, most in MIXES[mix]
            )
        gap = random_.expovariate(1.0)  # the same requests at every rate, closer together
        at += gap / rate
        found.append(Asked(at, prompt, output, words.getrandbits(32)))
    return found


@dataclass
class RequestTimes:
    """What became of a request: seconds from its arrival to its first and last token, and between events; tokens."""

    asked: Asked
    late: float = 0.0  # how much later than planned it was sent
    first: float = 0.0
    last: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt: int = 0
    tokens: int = 0
    error: str = ""

    @property
    def token_time(self) -> float:
        """Mean seconds of a token after the first."""
        return (self.last - self.first) / max(self.tokens - 1, 1)


@dataclass(frozen=True)
class BenchTarget:
    """A server, and how it is asked. words: words that make a token."""

    url: str
    model: str
    chat: bool = False
    extra: Mapping[str, Any] = field(default_factory=dict)
    words: float = 1.0
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, asked: Asked, **more: Any) -> dict[str, Any]:
        random_ = random.Random(asked.seed)
        text = " ".join(random_.choices(_WORDS, k=max(round(asked.prompt * self.words), 1)))
        prompt = {"messages": [{"role": "user", "content": text}]} if self.chat else {"prompt": text}
        return {"model": self.model, **prompt, "max_tokens": asked.output, "temperature": 0, **self.extra, **more}

    @property
    def path(self) -> str:
        return "/chat/completions" if self.chat else "/completions"


async def find_target(
    client: httpx.AsyncClient, url: str, model: str | None, chat: bool, more: Mapping[str, Any]
) -> BenchTarget:
    """The server at a URL: its model, whether it knows ``ignore_eos``, and how many words make a token there. more:
    fields of every body."""
    try:
        if model is None:
            found = (await client.get(url + "/models")).raise_for_status().json()["data"]
            model = found[0]["id"]
        extra = {"ignore_eos": True, **more}
        counts = []
        for words in (10, 10, 40):  # the first may find that ignore_eos is not known; a template has tokens of its own
            body = BenchTarget(url, model or "", chat, extra).body(Asked(0, words, 2, 0))
            answer = await client.post(url + ("/chat/completions" if chat else "/completions"), json=body)
            if answer.status_code in (400, 422) and "ignore_eos" in extra:
                extra = dict(more)
                continue
            tokens = (answer.raise_for_status().json().get("usage") or {}).get("prompt_tokens") or words
            counts.append((words, tokens))
        (few, low), (many, high) = counts[-2:]
        words_of_a_token = (many - few) / (high - low) if high > low else 1.0
        return BenchTarget(url, model or "", chat, extra, words_of_a_token)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        said = (
            error.response.text[:200]
            if isinstance(error, httpx.HTTPStatusError)
            else f"{type(error).__name__}: {error}"
        )
        raise UsageError(f"{url} does not answer as a server of OpenAI's interface: {said}") from None


async def ask(client: httpx.AsyncClient, target: BenchTarget, asked: Asked, arrival: float) -> RequestTimes:
    """Send one request and read its events."""
    found = RequestTimes(asked, late=time.perf_counter() - arrival)
    events = 0
    body = target.body(asked, stream=True, stream_options={"include_usage": True})
    before = 0.0
    try:
        async with client.stream("POST", target.url + target.path, json=body) as answer:
            if answer.status_code != 200:
                found.error = f"HTTP {answer.status_code}"
                return found
            async for line in answer.aiter_lines():
                if not line.startswith("data:") or line[5:].strip() == "[DONE]":
                    continue
                now, data = time.perf_counter() - arrival, json.loads(line[5:])
                if data.get("error"):
                    found.error = str(data["error"].get("message", "error"))[:100]
                    return found
                usage = data.get("usage") or {}
                found.prompt = usage.get("prompt_tokens", found.prompt)
                found.tokens = usage.get("completion_tokens", found.tokens)
                if not any(_has_text(c) for c in data.get("choices") or []):
                    continue
                events += 1
                if events == 1:
                    found.first = now
                else:
                    found.gaps.append(now - before)
                found.last = before = now
    except (httpx.HTTPError, ValueError, AttributeError) as error:
        found.error = type(error).__name__
    found.tokens = found.tokens or events
    if not found.error and not events:
        found.error = "no text"
    return found


def _has_text(choice: Mapping[str, Any]) -> bool:
    delta = choice.get("delta") or choice
    return any(delta.get(k) for k in ("text", "content", "reasoning_content", "reasoning", "tool_calls"))


async def measure(
    client: httpx.AsyncClient, target: BenchTarget, requests: Sequence[Asked]
) -> tuple[list[RequestTimes], float]:
    """All requests, each at its time; also the seconds until the last one was done."""
    begin = time.perf_counter() + 0.05

    async def one(asked: Asked) -> RequestTimes:
        arrival = begin + asked.at
        await asyncio.sleep(max(arrival - time.perf_counter(), 0))
        return await ask(client, target, asked, arrival)

    found = await asyncio.gather(*map(one, requests))
    return found, time.perf_counter() - begin


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """
    >>> percentiles([3.0, 1.0, 2.0])
    {'mean': 2.0, 'p50': 2.0, 'p90': 3.0, 'p95': 3.0, 'p99': 3.0}
    """
    if not values:
        return {}
    ordered = sorted(values)
    at = {f"p{p}": ordered[min(math.ceil(p / 100 * len(ordered)), len(ordered)) - 1] for p in (50, 90, 95, 99)}
    return {"mean": sum(ordered) / len(ordered), **at}


#: what an SLA may bound: seconds to the first token, of a token after it (mean of a request), of the whole request
BOUNDS: dict[str, Callable[[RequestTimes], float]] = {
    "ttft": lambda m: m.first,
    "itl": lambda m: m.token_time,
    "e2e": lambda m: m.last,
}


def parse_sla(text: str) -> dict[str, float]:
    """Bounds in milliseconds as seconds; UsageError for another text.

    >>> parse_sla("ttft=500,itl=50")
    {'ttft': 0.5, 'itl': 0.05}
    """
    found = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            found[name] = float(value) / 1000
        except ValueError:
            found[name] = -1.0
        if name not in BOUNDS or not 0 < found[name] < math.inf:
            raise UsageError(f"{part!r} is no bound", hint=f"as ttft=500,itl=50: {', '.join(BOUNDS)} in milliseconds")
    return found


def summary(rate: float, found: Sequence[RequestTimes], seconds: float, sla: Mapping[str, float]) -> dict[str, Any]:
    """The numbers of a run; times in seconds. goodput: requests a second that kept to the SLA."""
    done = [m for m in found if not m.error]
    errors: dict[str, int] = {}
    for m in found:
        if m.error:
            errors[m.error] = errors.get(m.error, 0) + 1
    good = [m for m in done if all(BOUNDS[name](m) <= most for name, most in sla.items())]
    return {
        "rate": rate,
        "requests": len(found),
        "completed": len(done),
        "errors": errors,
        "seconds": seconds,
        "requests_per_second": len(done) / seconds,
        "output_tokens_per_second": sum(m.tokens for m in done) / seconds,
        "prompt_tokens_per_second": sum(m.prompt for m in done) / seconds,
        "ttft": percentiles([m.first for m in done]),
        "itl": percentiles([m.token_time for m in done if m.tokens > 1]),
        "gap": percentiles([g for m in done for g in m.gaps]),
        "e2e": percentiles([m.last for m in done]),
        "sent_late": percentiles([m.late for m in found]),
        "goodput": len(good) / seconds,
        "good_share": len(good) / len(found),
    }


async def sweep(
    url: str,
    *,
    model: str | None = None,
    chat: bool = False,
    api_key: str | None = None,
    mix: str = "chat",
    rates: Sequence[float] = (1.0,),
    count: int = 50,
    seed: int = 0,
    texts: int = 0,
    more: Mapping[str, Any] | None = None,
    sla: Mapping[str, float] | None = None,
    limit: float = 600.0,
    report: Callable[[dict[str, Any]], None] = lambda run: None,
    transport: httpx.AsyncBaseTransport | None = None,
) -> dict[str, Any]:
    """A run at each rate, as data for JSON. texts: the number of the first run's texts. more: fields of every body,
    as of sampling, which is greedy otherwise. `report` gets the numbers of each run when it is done. UsageError for a
    server that does not answer, TilewrightError where no request of the first run was answered."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    url = url.rstrip("/")
    url = url if url.endswith("/v1") else url + "/v1"
    # other words at each rate: a server that keeps what it has read would not read them again
    plans = [schedule(mix, rate, count, seed, texts + i) for i, rate in enumerate(rates)]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    runs: list[dict[str, Any]] = []
    async with httpx.AsyncClient(headers=headers, timeout=limit, limits=limits, transport=transport) as client:
        target = await find_target(client, url, model, chat, more or {})
        for rate, plan in zip(rates, plans, strict=True):
            found, seconds = await measure(client, target, plan)
            run = summary(rate, found, seconds, sla or {})
            if not run["completed"]:
                raise TilewrightError(f"no request was answered: {run['errors']}", stage="bench-serve")
            runs.append({**run, "each": [_record(m) for m in found]})
            report(run)
    return {
        "url": url,
        "model": target.model,
        "endpoint": target.path.strip("/"),
        "ignore_eos": "ignore_eos" in target.extra,
        "mix": mix,
        "seed": seed,
        "sla": dict(sla or {}),
        "runs": runs,
    }


def _record(m: RequestTimes) -> dict[str, Any]:
    numbers = {"late": m.late, "first": m.first, "last": m.last}
    asked = {k: round(v, 6) for k, v in asdict(m.asked).items()}
    return {**asked, **{k: round(v, 6) for k, v in numbers.items()}, "tokens": m.tokens, "error": m.error}


__all__ = ["BOUNDS", "MIXES", "RequestTimes", "parse_sla", "percentiles", "schedule", "summary", "sweep"]

"""perf_analyzer's `--profile-export-file`: the times of every request and response, in nanoseconds.

Its responses hold the model's outputs. Ours say how many tokens a response brought, and in the last one how many
drafts were verified; of a model that does not say so, every response counts as one token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from dspark_client.bench import Run, summarise, summarise_load
from dspark_client.load import Answer, LoadResult
from dspark_client.report.measured import ALL_DOMAINS, Measured, Source

NANOSECOND = 1e-9
NO_STATISTICS = {"rounds": 0}


def is_perf_analyzer(document: Any) -> bool:
    """Whether a document is such an export."""
    return isinstance(document, dict) and isinstance(document.get("experiments"), list)


def read_perf_analyzer(document: Mapping[str, Any], name: str) -> Source:
    """A measurement an experiment. Raises KeyError, TypeError or ValueError where it lacks what it must have."""
    found = tuple(_measured(experiment, name) for experiment in document["experiments"])
    settings = tuple((key, str(document[key])) for key in ("version", "service_kind") if key in document)
    return Source(name, "perf_analyzer", found, settings)


def _measured(experiment: Mapping[str, Any], name: str) -> Measured:
    mode, value = experiment["experiment"]["mode"], experiment["experiment"]["value"]
    run = Run(
        f"perf_analyzer ({name})", int(value) if mode == "concurrency" else None,
        float(value) if mode == "request_rate" else None, ALL_DOMAINS, 0,
    )
    (point,) = summarise([summarise_load(run, _load(experiment))])
    return Measured(
        source=name, series=point.policy, concurrency=point.concurrency, rate=point.rate, domain=point.domain,
        tokens_per_second=point.tokens_per_second, tokens_per_second_per_user=point.tokens_per_second_per_user,
        ttft_ms=point.ttft_ms, itl_ms=point.itl_ms, tau=point.tau, verified_per_request=point.verified_per_request,
        repeats=1,
    )


def _load(experiment: Mapping[str, Any]) -> LoadResult:
    requests = experiment["requests"]
    began = min(request["timestamp"] for request in requests)
    answers = [_answer(request, began) for request in requests if request["response_timestamps"]]
    return LoadResult(answers, max((answer.sent_s + answer.total_s for answer in answers), default=0.0))


def _answer(request: Mapping[str, Any], began: int) -> Answer:
    times, counts, statistics = [], [], NO_STATISTICS
    outputs = request.get("response_outputs") or [{}] * len(request["response_timestamps"])
    for at, output in zip(request["response_timestamps"], outputs, strict=True):
        tokens = _tokens(output)
        statistics = json.loads(output["statistics"]) if output.get("statistics") else statistics
        if tokens:
            times.append((at - request["timestamp"]) * NANOSECOND)
            counts.append(tokens)
    token_ids = (0,) * sum(counts)
    sent_s = (request["timestamp"] - began) * NANOSECOND
    return Answer("", token_ids, tuple(times), tuple(counts), statistics, sent_s)


def _tokens(output: Mapping[str, Any]) -> int:
    """Tokens of one response; a model that does not name them is taken to send one."""
    token_ids = output.get("token_ids", 0)
    return len(token_ids) if isinstance(token_ids, list) else 1

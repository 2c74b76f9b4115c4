"""This server against llama.cpp's, same weights, same prompts, turn and turn about: prints JSON.

    python tests/benchmarks/against_llama_cpp.py --llama-server PATH --gguf FILE --prompts gsm8k.jsonl humaneval.jsonl

Both servers run for the whole measurement and only one of them is asked at a time. Greedy, fixed numbers of tokens,
prompts as the token ids of this project's tokenizer, no prompt cache in either.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dspark.engines.contract import EngineFolder
from dspark.orchestrator import Tokenizer
from dspark.orchestrator.chat import Message as Turn
from dspark_client.bench.plan import mixed
from dspark_client.deployment import serving_settings
from dspark_client.load import load_progress, run_load
from dspark_client.prompts import read_prompts
from dspark_client.sessions import own_server
from dspark_client.transport import Generation

READY_S, ANSWER_S = 120.0, 600.0


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def post(url: str, values: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(values).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
        return json.load(answer)


def llama_load(url: str, prompts: Sequence[list[int]], tokens: int, concurrency: int) -> float:
    """Tokens a second over all requests, `concurrency` in flight."""
    def one(prompt: list[int]) -> int:
        settings = {"n_predict": tokens, "temperature": 0.0, "ignore_eos": True, "cache_prompt": False}
        return int(post(f"{url}/completion", {"prompt": prompt, **settings})["tokens_predicted"])

    began = time.perf_counter()
    with ThreadPoolExecutor(concurrency) as pool:
        made = sum(pool.map(one, prompts))
    return made / (time.perf_counter() - began)


def wait_for(url: str, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("llama-server did not come up")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, nargs="+", required=True)
    parser.add_argument("--policies", default="none,adaptive+lookup")
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    settings = serving_settings("smollm2-135m-instruct", "int8", given.policies.split(",")[-1])
    settings = type(settings)(**{**vars(settings), "switchable_policies": True})
    tokenizer = Tokenizer(EngineFolder(Path(settings.engine_folder)).tokenizer)
    levels = [int(level) for level in given.concurrency.split(",")]
    port = free_port()
    command = [
        str(given.llama_server), "-m", str(given.gguf), "--host", "127.0.0.1", "--port", str(port), "-t",
        str(given.threads), "-np", str(max(levels)), "-c", str(1024 * max(levels)), "--no-webui", "--log-disable",
    ]
    llama = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    samples: dict[tuple[str, int, str], list[float]] = {}
    try:
        wait_for(url, llama)
        with own_server(settings) as server, load_progress() as progress:
            for repeat in range(given.repeats):
                for file in given.prompts:
                    prompts = mixed(read_prompts([file], given.limit))
                    ids = [
                        tokenizer.encode(
                            tokenizer.render_chat([Turn("user", prompt.turns[0])]), add_special_tokens=False
                        ).tolist() for prompt in prompts
                    ]
                    for concurrency in levels:
                        chosen = (ids * (1 + concurrency // len(ids)))[: max(len(ids), concurrency)]
                        ours = [
                            Generation(input_ids=one, max_tokens=given.max_tokens, temperature=0.0, ignore_eos=True)
                            for one in chosen
                        ]
                        runs = ["llama.cpp", *given.policies.split(",")]
                        for name in runs[repeat % len(runs) :] + runs[: repeat % len(runs)]:
                            if name == "llama.cpp":
                                speed = llama_load(url, chosen, given.max_tokens, concurrency)
                            else:
                                list(server.connection.generate(
                                    Generation(input_ids=chosen[0], max_tokens=2, policy=name), ANSWER_S
                                ))
                                result = run_load(server.connection, ours, concurrency, progress, f"{name} {file.stem}")
                                speed = result.tokens / result.wall_s
                            samples.setdefault((file.stem, concurrency, name), []).append(speed)
    finally:
        llama.terminate()
        llama.wait()
    points = [
        {
            "dataset": dataset, "concurrency": concurrency, "server": name,
            "tokens_per_second": round(statistics.median(speeds), 1),
            "samples": [round(speed, 1) for speed in speeds],
            "ratio_to_llama_cpp": round(statistics.median(
                own / other for own, other in zip(speeds, samples[dataset, concurrency, "llama.cpp"], strict=True)
            ), 3),
        }
        for (dataset, concurrency, name), speeds in samples.items()
    ]
    version = subprocess.run([str(given.llama_server), "--version"], capture_output=True, text=True).stderr
    text = json.dumps(
        {
            "points": points, "llama_cpp": version.split("\n")[0], "flags": command[7:],
            "max_tokens": given.max_tokens,
        }, indent=1,
    )
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()

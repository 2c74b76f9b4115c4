"""Engines over a fixed random table p(next | last two tokens) that hold every step to the contract.

The target keeps the tokens of its slots and the drafter their context rows, so that a wrong position, a missing row or
a slot that was not released is an EngineError, not a silently different text.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from dspark.engines.contract import (
    DrafterLimits,
    DrafterResult,
    DrafterStep,
    TargetLimits,
    TargetResult,
    TargetStep,
)
from dspark.errors import EngineError
from dspark.orchestrator import Engines, GenerationRequest, Tokenizer
from dspark.verification import (
    SamplingSettings,
    coupled_choice,
    draft_distribution,
    log_probs_of,
    verify_block,
    verify_block_coupled,
)
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as RawTokenizer

SPECIAL = ("<|end|>", "<|im_start|>", "<|im_end|>")
END_OF_TURN = 2
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
V = len(SPECIAL) + 256
GAMMA, K = 4, 8

TARGET_LIMITS = TargetLimits(
    vocabulary_size=V, hidden_size=2, max_context=200, max_slots=8, kv_block_size=16, kv_blocks=60,
    max_draft_tokens=GAMMA, spare_tokens=GAMMA + 1,
)
DRAFTER_LIMITS = DrafterLimits(
    vocabulary_size=V, feature_size=2, block_size=GAMMA, candidates=K, max_slots=8, window=12, has_confidence=True,
    can_couple=True,
)


def write_tokenizer(folder: Path) -> Path:
    """A byte tokenizer with ChatML specials; every byte is a token."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = RawTokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHATML)
    (folder / "generation_config.json").write_text(f'{{"bos_token_id": 0, "eos_token_id": [{END_OF_TURN}, 0]}}')
    return folder


class Table:
    """Logits [V] of the next token: a fixed function of the last two, which prefers the specials to nothing."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self._before, self._last = (2 * rng.standard_normal((2, V, V))).astype(np.float32)
        self._bias = np.full(V, -8.0, np.float32)
        self._bias[len(SPECIAL) + 60 : len(SPECIAL) + 90] = 0.0     # lower-case letters and a few more

    def logits(self, tokens: list[int]) -> np.ndarray:
        before = tokens[-2] if len(tokens) > 1 else 0
        return self._before[before] + self._last[tokens[-1]] + self._bias


class ToyTarget:
    def __init__(self, table: Table, limits: TargetLimits = TARGET_LIMITS) -> None:
        self.limits = limits
        self.slots: dict[int, list[int]] = {}
        self.steps: list[TargetStep] = []
        self._table = table

    def step(self, step: TargetStep) -> TargetResult:
        self.steps.append(step)
        for slot in step.released.tolist():
            self.slots.pop(slot, None)
        starts = np.cumsum(step.token_counts) - step.token_counts
        draft_starts = np.cumsum(step.draft_counts) - step.draft_counts
        rows = [self._row(step, r, int(starts[r]), int(draft_starts[r])) for r in range(len(step.slots))]
        accepted, next_tokens, features, log_probs = zip(*rows, strict=True)
        self._check_blocks()
        return TargetResult(
            accepted=np.array(accepted, np.int32), next_tokens=np.array(next_tokens, np.int32),
            feature_counts=np.array([len(rows) for rows in features], np.int32),
            features=np.concatenate(features), log_probs=np.stack(log_probs),
        )

    def close(self) -> None: ...

    def _row(self, step: TargetStep, r: int, start: int, draft_start: int):
        slot, position, count, drafts = (
            int(step.slots[r]), int(step.positions[r]), int(step.token_counts[r]), int(step.draft_counts[r])
        )
        if position == 0:
            self.slots[slot] = []
        held = self.slots.get(slot)
        if held is None or position > len(held):
            raise EngineError(f"slot {slot} holds {held and len(held)} tokens, the step starts at {position}")
        if count + position > self.limits.max_context or drafts >= count:
            raise EngineError("too many tokens")
        tokens = held[:position] + step.tokens[start : start + count].tolist()
        log_probs = np.full(self.limits.max_draft_tokens + 1, np.nan, np.float32)
        accepted, next_token = 0, -1
        if step.samples[r]:
            seen = len(tokens) - drafts
            logits = np.stack([self._table.logits(tokens[: seen + k]) for k in range(drafts + 1)])
            block = slice(draft_start, draft_start + drafts)
            draft_tokens = np.array(tokens[seen:], np.int32)
            sampling, history = SamplingSettings.row(step.sampling, r), np.array(tokens[:seen], np.int32)
            if step.coupled[r]:
                verdict = verify_block_coupled(logits, draft_tokens, sampling, history, step.noise_keys[r])
            else:
                p_draft = step.draft_ids[block], step.draft_probs[block]
                verdict = verify_block(logits, draft_tokens, *p_draft, sampling, history, step.uniforms[r])
            accepted, next_token = verdict.accepted, verdict.next_token
            if step.wants_log_probs[r]:
                chosen = np.array([*draft_tokens[:accepted], next_token], np.int32)
                log_probs[: accepted + 1] = log_probs_of(logits[: accepted + 1], chosen)
        self.slots[slot] = tokens
        committed = count - drafts + accepted
        rows = [(position + i, token) for i, token in enumerate(tokens[position : position + committed])]
        features = np.array(rows if step.wants_features[r] else [], np.float32).reshape(-1, 2)
        return accepted, next_token, features, log_probs

    def _check_blocks(self) -> None:
        used = sum(-(-len(tokens) // self.limits.kv_block_size) for tokens in self.slots.values())
        if used > self.limits.kv_blocks:
            raise EngineError(f"{used} KV blocks used of {self.limits.kv_blocks}")


class ToyDrafter:
    """Drafts from the target's table with some noise; its confidence is what the noise makes of the acceptance."""

    def __init__(self, table: Table, noise: float = 0.5, limits: DrafterLimits = DRAFTER_LIMITS) -> None:
        self.limits = limits
        self.slots: dict[int, list[tuple[int, int]]] = {}
        self.steps: list[DrafterStep] = []
        self._table, self._noise = table, noise

    def step(self, step: DrafterStep) -> DrafterResult:
        self.steps.append(step)
        ends = np.cumsum(step.context_counts)
        tokens, logits, ids, probs = zip(*[
            self._row(step, r, step.context[ends[r] - step.context_counts[r] : ends[r]])
            for r in range(len(step.slots))
        ], strict=True)
        return DrafterResult(np.stack(tokens), np.stack(logits), np.stack(ids), np.stack(probs))

    def close(self) -> None: ...

    def _row(self, step: DrafterStep, r: int, context: np.ndarray):
        slot, position = int(step.slots[r]), int(step.positions[r])
        fresh = position == len(context)
        held = ([] if fresh else self.slots.get(slot, [])) + [(int(p), int(t)) for p, t in context]
        held = held[-self.limits.window :]
        expected = list(range(max(0, position - self.limits.window), position))
        if [p for p, _ in held] != expected or len(context) > self.limits.window:
            raise EngineError(f"slot {slot} holds rows {[p for p, _ in held]}, expected {expected}")
        self.slots[slot] = held
        tokens = [token for _, token in held[-1:]] + [int(step.anchors[r])]
        drafted, confidences, all_ids, all_probs = [], [], [], []
        for k in range(self.limits.block_size):
            target = self._table.logits(tokens)
            logits = target + self._noise * np.sin(np.arange(V) * (1 + tokens[-1])).astype(np.float32)
            ids = np.argsort(-logits)[: self.limits.candidates].astype(np.int32)
            temperature = float(step.temperatures[r])
            weights = np.exp((logits[ids] - logits[ids[0]]) / temperature) if temperature else np.eye(len(ids))[0]
            probs = (weights / weights.sum()).astype(np.float32)
            if step.coupled[r]:
                choice = coupled_choice(draft_distribution(ids, probs), int(step.noise_keys[r, k]))
                chosen = int(np.flatnonzero(ids == choice)[0])
            else:
                chosen = min(int(probs.cumsum().searchsorted(step.uniforms[r, k], side="right")), len(ids) - 1)
            drafted.append(int(ids[chosen]))
            confidences.append(2.0 - 0.3 * k - self._noise)
            all_ids.append(ids)
            all_probs.append(probs)
            tokens.append(drafted[-1])
        return (
            np.array(drafted, np.int32), np.array(confidences, np.float32), np.stack(all_ids), np.stack(all_probs)
        )


class Listener:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.chunks: list = []
        self.error: Exception | None = None
        self.finished = False
        self.cancelled = False

    def send(self, chunk) -> None:
        self.chunks.append(chunk)

    def finish(self, chunk) -> None:
        self.chunks.append(chunk)
        self.finished = True

    def fail(self, error) -> None:
        self.error = error

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def over(self) -> bool:
        return self.finished or self.error is not None

    @property
    def tokens(self) -> list[int]:
        return [token for chunk in self.chunks for token in chunk.token_ids]

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def origins(self) -> list[int]:
        return [int(origin) for chunk in self.chunks for origin in chunk.token_origins]


def engines(noise: float = 0.5, target: TargetLimits = TARGET_LIMITS, drafter: DrafterLimits = DRAFTER_LIMITS):
    """Toy engines, and the records the loop takes them in."""
    table = Table()
    toy_target, toy_drafter = ToyTarget(table, target), ToyDrafter(table, noise, drafter)
    return toy_target, toy_drafter, Engines(toy_target.step, toy_drafter.step, target, drafter)


def plain_decoding(request: GenerationRequest, table: Table | None = None) -> list[int]:
    """What greedy decoding of the table gives, a token at a time, up to and including a stop token."""
    table = table or Table()
    tokens, output = request.prompt.tolist(), []
    while len(output) < request.max_tokens and not (output and output[-1] in request.stop_tokens):
        output.append(int(table.logits(tokens).argmax()))
        tokens.append(output[-1])
    return output


def request(prompt: str | list[int] = "once upon a time", max_tokens: int = 20, seed: int = 1, **changes):
    """A greedy request for `max_tokens` tokens."""
    tokens = [len(SPECIAL) + byte % 256 for byte in prompt.encode()] if isinstance(prompt, str) else prompt
    settings = {"sampling": SamplingSettings(temperature=0.0), "stream": True} | changes
    return GenerationRequest(prompt=np.array(tokens, np.int32), max_tokens=max_tokens, seed=seed, **settings)


def read_tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer(write_tokenizer(folder))

"""The OpenVINO target against transformers and against itself, step by step."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from dspark.engines import loading
from dspark.engines.engine_json import write_record
from dspark.engines.openvino_target import OpenVinoTarget
from dspark.errors import ConfigurationError, EngineError
from dspark_build.drafters import load_feature_head, read_drafter_config
from dspark_build.models.target import Target
from tiny_targets import (
    CONTEXT,
    GAMMA,
    HIDDEN,
    TAPS,
    VOCABULARY,
    Request,
    built,
    checkpoints,
    engine,
    features_of,
    random_tokens,
    step_of,
)

FLAVOURS = ("llama", "qwen3")
TOLERANCE = 1e-4                     # logits whose sums run in another order


def reference_log_probs(flavour: str, tokens: list[int]) -> np.ndarray:
    """log p of every next token, [S, V], by transformers on the same checkpoint."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoints(flavour)[0], dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].log_softmax(-1).numpy()


def continue_greedily(target: OpenVinoTarget, slot: int, prompt: list[int], count: int) -> list[int]:
    tokens = [int(target.step(step_of([Request(slot, 0, prompt)])).next_tokens[0])]
    while len(tokens) < count:
        position = len(prompt) + len(tokens) - 1
        tokens.append(int(target.step(step_of([Request(slot, position, tokens[-1:])])).next_tokens[0]))
    return tokens


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_whole_prompt_gives_the_token_and_log_probability_of_transformers(flavour):
    prompt = random_tokens(150)
    expected = reference_log_probs(flavour, prompt)[-1]
    result = engine(flavour).step(step_of([Request(0, 0, prompt)]))
    assert result.next_tokens[0] == expected.argmax()
    assert abs(result.log_probs[0, 0] - expected.max()) < TOLERANCE
    assert np.isnan(result.log_probs[0, 1:]).all()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_prompt_in_chunks_ends_in_the_same_state_as_at_once(flavour):
    prompt = random_tokens(90)
    at_once = engine(flavour).step(step_of([Request(0, 0, prompt)]))
    target, parts = engine(flavour), []
    for start, stop in ((0, 1), (1, 40), (40, 41), (41, 90)):
        request = Request(3, start, prompt[start:stop], samples=stop == 90)
        result = target.step(step_of([request]))
        parts.append(result.features)
    assert result.next_tokens[0] == at_once.next_tokens[0]
    assert np.array_equal(result.log_probs, at_once.log_probs, equal_nan=True)
    assert np.array_equal(np.concatenate(parts), at_once.features)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_ragged_verification_with_rollback_agrees_with_transformers(flavour):
    target = engine(flavour)
    texts = {0: random_tokens(40, 1), 2: random_tokens(7, 2), 5: random_tokens(71, 3)}
    lengths = {slot: len(text) - 1 for slot, text in texts.items()}
    target.step(step_of([Request(slot, 0, text[:-1], samples=False) for slot, text in texts.items()]))
    worst = 0.0
    random = np.random.default_rng(4)
    for _ in range(6):
        expected = {slot: reference_log_probs(flavour, text) for slot, text in texts.items()}
        requests = []
        for slot, text in texts.items():
            drafts = [int(expected[slot][-1].argmax()), *random.integers(0, VOCABULARY, random.integers(0, GAMMA))]
            requests.append(Request(slot, lengths[slot], text[-1:], drafts=drafts if random.random() < 0.8 else ()))
        result = target.step(step_of(requests))
        for r, request in enumerate(requests):
            slot, accepted = request.slot, int(result.accepted[r])
            new = [*request.drafts[:accepted], int(result.next_tokens[r])]
            full = reference_log_probs(flavour, [*texts[slot], *new])
            rows = full[len(texts[slot]) - 1 : -1]
            assert [int(row.argmax()) for row in rows] == new
            worst = max(worst, np.abs(result.log_probs[r, : len(new)] - rows.max(-1)).max())
            texts[slot] += new
            lengths[slot] += 1 + accepted
    assert worst < TOLERANCE


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_features_are_the_drafters_projection_of_the_tapped_layers(flavour):
    tokens = random_tokens(50)
    target, drafter = checkpoints(flavour)
    model = Target.load(target)
    with torch.no_grad():
        dense = model.forward_dense(torch.tensor([tokens]))
        head = load_feature_head(drafter, read_drafter_config(drafter, target))
        expected = head(dense.tapped(TAPS))[0].numpy()
    result = engine(flavour).step(step_of([Request(1, 0, tokens)]))
    assert result.features.shape == (50, HIDDEN)
    assert np.abs(result.features - expected).max() < TOLERANCE


def test_features_come_back_for_committed_tokens_only():
    target = engine()
    prompt = random_tokens(10)
    first = int(target.step(step_of([Request(0, 0, prompt), Request(1, 0, prompt, features=False)])).next_tokens[0])
    right = continue_greedily(target, 2, prompt, 3)
    wrong = (right[2] + 1) % VOCABULARY
    result = target.step(
        step_of(
            [
                Request(0, 10, [first], drafts=[right[1], wrong, wrong]),
                Request(1, 10, [first], drafts=[right[1], wrong], features=False),
                Request(2, 10, [first]),
            ]
        )
    )
    assert list(result.accepted) == [1, 1, 0]
    assert list(result.feature_counts) == [2, 0, 1]
    assert result.features.shape == (3, HIDDEN)
    assert np.array_equal(features_of(result, 0)[0], features_of(result, 2)[0])
    assert result.next_tokens[0] == right[2]


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_sequence_is_the_same_to_the_bit_alone_and_among_neighbours(precision):
    """Tokens, log-probabilities and features, plain and with drafts, at temperature 1."""
    prompt = random_tokens(20, 5)
    random = np.random.default_rng(6)
    uniforms = random.random((40, GAMMA + 1)).astype(np.float32)

    def run(company: bool) -> tuple[list[int], list[np.ndarray]]:
        target = engine("llama", precision)
        tokens, rows, position, fed = [], [], 0, prompt
        for count in range(25):
            own = Request(2, position, fed, temperature=1.0, uniforms=uniforms[count])
            strangers = [
                Request(slot, 0, random_tokens(int(random.integers(1, 30)), count + slot), temperature=1.0)
                for slot in (0, 1, 3, 5)
                if company and random.random() < 0.7
            ]
            requests = sorted([own, *strangers], key=lambda request: request.slot)
            result = target.step(step_of(requests))
            r = requests.index(own)
            rows += [features_of(result, r), result.log_probs[r, :1]]
            position += len(fed)
            fed = [int(result.next_tokens[r])]
            tokens += fed
        return tokens, rows

    alone, together = run(company=False), run(company=True)
    assert alone[0] == together[0]
    assert all(np.array_equal(a, b) for a, b in zip(alone[1], together[1], strict=True))


def test_verified_drafts_leave_the_same_state_as_single_steps():
    for precision in ("fp32", "int8"):
        target = engine("llama", precision)
        prompt = random_tokens(33)
        plain = continue_greedily(target, 0, prompt, 30)
        target.step(step_of([Request(1, 0, prompt)]))
        speculated, random = plain[:1], np.random.default_rng(7)
        while len(speculated) < 25:
            at = len(speculated)
            drafts = plain[at : at + GAMMA]
            if random.random() < 0.5:
                drafts[-1] = (drafts[-1] + 1) % VOCABULARY
            result = target.step(step_of([Request(1, 33 + at - 1, speculated[-1:], drafts=drafts)]))
            speculated += [*drafts[: result.accepted[0]], int(result.next_tokens[0])]
        assert speculated == plain[: len(speculated)]


def test_the_repetition_penalty_looks_at_the_whole_sequence_up_to_the_anchor():
    target = engine()
    prompt = random_tokens(12)
    free = int(target.step(step_of([Request(0, 0, prompt)])).next_tokens[0])
    request = Request(0, 0, [free, *prompt[1:]], repetition_penalty=1e6)
    penalised = int(target.step(step_of([request])).next_tokens[0])
    assert penalised not in [free, *prompt[1:]]


def test_a_step_may_do_nothing_but_release():
    target = engine()
    target.step(step_of([Request(0, 0, random_tokens(64))]))
    assert target.free_blocks == target.limits.kv_blocks - 2
    result = target.step(step_of([], released=[0]))
    assert target.free_blocks == target.limits.kv_blocks
    assert result.features.shape == (0, HIDDEN) and result.accepted.size == 0


def test_a_slot_released_and_reused_in_one_step_starts_afresh():
    target = engine()
    prompt = random_tokens(40)
    expected = target.step(step_of([Request(4, 0, prompt)]))
    target.step(step_of([Request(1, 0, random_tokens(100, 9))]))
    result = target.step(step_of([Request(1, 0, prompt)], released=[1, 4]))
    assert np.array_equal(result.features, expected.features)


def test_an_exhausted_pool_is_an_error_that_leaves_the_other_slots_as_they_were():
    target = engine()
    prompt = random_tokens(30)
    expected = continue_greedily(target, 0, prompt, 3)
    target.step(step_of([], released=[0]))
    target.step(step_of([Request(0, 0, prompt)]))
    for slot in (1, 2):
        target.step(step_of([Request(slot, 0, random_tokens(250), samples=False)]))
    free = target.free_blocks
    with pytest.raises(EngineError, match="KV pool is exhausted"):
        target.step(step_of([Request(0, 30, expected[:1]), Request(3, 0, random_tokens(200), samples=False)]))
    assert target.free_blocks == free
    result = target.step(step_of([Request(0, 30, expected[:1])]))
    assert result.next_tokens[0] == expected[1]


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(6, 0, [1]), "slot ids must lie in 0..5"),
        (Request(0, 5, [1]), "slot 0 holds 0 tokens"),
        (Request(0, 0, [1] * (CONTEXT + GAMMA + 1)), f"context of {CONTEXT}"),
        (Request(0, 0, [VOCABULARY]), "outside the vocabulary"),
        (Request(0, 0, [-1]), "outside the vocabulary"),
        (Request(0, 0, [1], drafts=[VOCABULARY - 1] * (GAMMA + 1)), f"at most {GAMMA}"),
        (Request(0, 0, [], drafts=[1]), "below token_counts"),
        (Request(0, 0, []), "at least one token"),
        (Request(0, 0, [1], drafts=[1], samples=False), "cannot bring drafts"),
    ],
)
def test_a_step_that_contradicts_the_limits_is_refused(request_, message):
    with pytest.raises(EngineError, match=message):
        engine().step(step_of([request_]))


def test_a_slot_twice_in_a_step_is_refused():
    with pytest.raises(EngineError, match="occurs twice"):
        engine().step(step_of([Request(0, 0, [1]), Request(0, 0, [2])]))


def test_the_loader_finds_the_engine_and_its_limits():
    folder = built()
    target = loading.load_target(folder, threads=1, exact=False)
    assert target.limits == loading.read_target_limits(folder) == engine().limits
    assert target.step(step_of([Request(0, 0, random_tokens(9))])).next_tokens[0] >= 0
    target.close()


def test_a_folder_without_its_graph_is_refused(tmp_path):
    (tmp_path / "engine.json").write_text((built() / "engine.json").read_text())
    with pytest.raises(ConfigurationError, match=r"engine\.xml.*dspark build"):
        loading.load_target(tmp_path)


def test_an_engine_that_was_probed_on_another_cpu_says_that_it_may_not_be_exact(tmp_path, caplog):
    shutil.copytree(built(), tmp_path / "engine")
    record = engine().record
    write_record(tmp_path / "engine", replace(record, facts=replace(record.facts, cpu="another CPU")))
    OpenVinoTarget(tmp_path / "engine", exact=False)
    assert not caplog.records
    OpenVinoTarget(tmp_path / "engine")
    assert "probed on 'another CPU'" in caplog.text

"""Replay against serving: the same rounds at temperature 0, the same law of rounds above it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from dspark.drafting import PromptLookup
from dspark.verification import SamplingSettings, target_distribution, verify_block
from dspark_build.checkpoints.form import checkpoint_hash
from dspark_build.drafters import initialise_drafter, initialise_eagle, reduce_vocabulary
from dspark_build.evaluation.replay import (
    Outcomes,
    Recorded,
    lookup_first,
    recorded,
    replay_drafter,
    replay_lookup,
)
from dspark_build.evaluation.rounds import anchors_of_rounds, tally
from dspark_build.models.drafter import Drafter
from dspark_build.models.target import Target
from dspark_build.training import FitConfig, fit_drafter
from dspark_build.training.blocks import make_batch
from dspark_build.training.data import TrainingSequence, load_data
from dspark_build.training.states import StateSource
from synthetic import HIDDEN, TAPS, VOCABULARY, make_tiny_checkpoint, make_training_data

GAMMA, WINDOW = 4, 16
PROMPT = np.array([5, 9, 13, 21, 5, 9], np.int32)
NEW_TOKENS = 6


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    checkpoint, responses, states = make_training_data(tmp_path_factory.mktemp("language"))
    return checkpoint, responses, states, tmp_path_factory.mktemp("runs")


def half_trained(language, head: str):
    """A drafter that is right in some places and wrong in others."""
    checkpoint, responses, states, runs = language
    drafter = new_drafter(checkpoint, head)
    config = FitConfig(
        checkpoint, responses, states, runs / head, steps=40, sequences_per_step=3, anchors_per_sequence=5,
        window=WINDOW, frequent_tokens=0, learning_rate=3e-3, warm_up_steps=2, held_out=0.0,
    )  # fmt: skip
    with torch.enable_grad():
        fit_drafter(config, drafter)
    return drafter.eval()


def new_drafter(checkpoint, head: str):
    if head == "eagle3":
        return initialise_eagle(checkpoint, target_layer_ids=TAPS, block_size=GAMMA)
    return initialise_drafter(
        checkpoint, target_layer_ids=TAPS, start_layers=[1], block_size=GAMMA, markov_head_type=head, markov_rank=16,
        mask_token_id=3,
    )  # fmt: skip


def served_draft(drafter, sequence: TrainingSequence, anchor: int, uniforms: np.ndarray):
    """One block as serving drafts it, from the tokens up to the anchor: ids and p^d of all its positions."""
    first = max(0, anchor - WINDOW)
    taps = torch.tensor(sequence.context(anchor)[first:]).float()[None]
    context = drafter.context_keys_values(drafter.context_features(taps), torch.arange(first, anchor)[None])
    return drafter.draft(
        torch.tensor([int(sequence.tokens[anchor])]), torch.tensor([anchor]), context,
        torch.ones(1, anchor - first, dtype=torch.bool), torch.tensor([sequence.temperature]),
        torch.from_numpy(uniforms[None].astype(np.float32)),
    )  # fmt: skip


def greedy_draft(drafter, sequence: TrainingSequence, anchor: int) -> list[int]:
    if isinstance(drafter, Drafter):
        return served_draft(drafter, sequence, anchor, np.zeros(GAMMA)).tokens[0].tolist()
    draft: list[int] = []
    while len(draft) < GAMMA:        # what the baseline has not drafted yet is unknown to it: zeros
        tokens = np.concatenate([sequence.tokens[: anchor + 1], draft, np.zeros(GAMMA - len(draft))]).astype(np.int32)
        own = dataclasses.replace(sequence, tokens=tokens, last=np.zeros((len(tokens), HIDDEN), np.float16),
                                  log_z=np.zeros(len(tokens), np.float32))  # fmt: skip
        hidden = drafter.block_hidden(make_batch([own], [np.array([anchor])], GAMMA, WINDOW))[0, 0]
        draft.append(int(drafter.lm_head(hidden[len(draft)]).argmax()))
    return draft


def greedy_sequences(language) -> list[TrainingSequence]:
    checkpoint, responses, states, _ = language
    source = StateSource(TAPS, HIDDEN, checkpoint_hash(checkpoint))
    return [s for s in load_data(responses, states, source, 0.0).train if s.temperature == 0]


@pytest.mark.parametrize("head", ["vanilla", "rnn", "eagle3"])
def test_at_temperature_0_the_rounds_are_those_of_drafting_along_the_text(language, head):
    drafter = half_trained(language, head)
    sequences = greedy_sequences(language)[:4]
    accepted_in_all = 0
    for sequence in sequences:
        outcomes = replay_drafter(drafter, recorded(sequence, drafter.lm_head.weight, seed=0), WINDOW)
        anchors, accepted, position = [], [], sequence.prompt_length
        last = len(sequence.tokens) - 1
        while position < last:
            draft = greedy_draft(drafter, sequence, position)[: last - 1 - position]
            text = sequence.tokens[position + 1 : position + 1 + len(draft)].tolist()
            agree = next((k for k, pair in enumerate(zip(draft, text, strict=True)) if pair[0] != pair[1]), len(draft))
            anchors.append(position - sequence.prompt_length)
            accepted.append(agree)
            position += agree + 1
        walked = anchors_of_rounds(outcomes, GAMMA)
        assert walked.tolist() == anchors
        assert outcomes.accepted[walked].tolist() == accepted
        accepted_in_all += sum(accepted)
    assert 0 < accepted_in_all < sum(s.anchors for s in sequences) * GAMMA / (GAMMA + 1)


class World:
    """A tiny target and an untrained drafter: both distributions are flat enough to overlap."""

    def __init__(self, folder, temperature: float) -> None:
        checkpoint = make_tiny_checkpoint(folder)
        self.temperature, self.sampling = temperature, SamplingSettings(temperature=temperature)
        self.target = Target.load(checkpoint)
        self.head = self.target.lm_head.weight.detach()
        self.drafter = new_drafter(checkpoint, "vanilla")
        for name, parameter in self.drafter.named_parameters():
            if name.startswith("markov_head"):
                parameter.mul_(20)

    def states(self, tokens: np.ndarray) -> tuple[TrainingSequence, np.ndarray]:
        """The record of a text and its logits [n, V]."""
        output = self.target.forward_dense(torch.from_numpy(tokens).long()[None])
        logits = self.target.lm_head(output.last_hidden)[0]
        taps = output.tapped(TAPS)[0].unflatten(-1, (len(TAPS), HIDDEN))
        sequence = TrainingSequence(
            id="x/0", domain="chat", temperature=self.temperature, prompt_length=len(PROMPT), tokens=tokens,
            taps=taps.numpy(), last=output.last_hidden[0].numpy(), log_z=logits.logsumexp(-1).numpy(),
            tap_places=tuple(range(len(TAPS))),
        )  # fmt: skip
        return sequence, logits.numpy()

    def next_token(self, tokens: np.ndarray, uniform: float) -> int:
        return target_distribution(self.states(tokens)[1][-1], self.sampling, tokens).draw(uniform)

    def write(self, random: np.random.Generator, count: int) -> np.ndarray:
        tokens = PROMPT
        for _ in range(count):
            tokens = np.append(tokens, np.int32(self.next_token(tokens, random.random())))
        return tokens

    def serve(self, random: np.random.Generator) -> list[int]:
        """Accepted drafts of every round until NEW_TOKENS are there, by the rule of the server."""
        tokens, accepted = self.write(random, 1), []
        while (left := len(PROMPT) + NEW_TOKENS - len(tokens)) > 0:
            anchor = len(tokens) - 1
            block = served_draft(self.drafter, self.states(tokens)[0], anchor, random.random(GAMMA))
            count = min(GAMMA, left - 1)
            draft = block.tokens[0, :count].numpy()
            logits = self.states(np.append(tokens, draft).astype(np.int32))[1][anchor:]
            verdict = verify_block(
                logits, draft, block.draft_ids[0, :count].numpy(), block.draft_probs[0, :count].numpy(),
                self.sampling, tokens, random.random(GAMMA + 1).astype(np.float32),
            )  # fmt: skip
            accepted.append(verdict.accepted)
            tokens = np.concatenate([tokens, draft[: verdict.accepted], [verdict.next_token]]).astype(np.int32)
        return accepted

    def replay(self, random: np.random.Generator, seed: int) -> list[int]:
        sequence, _ = self.states(self.write(random, NEW_TOKENS))
        response = recorded(sequence, self.head, seed)
        outcomes = replay_drafter(self.drafter, response, WINDOW)
        return outcomes.accepted[anchors_of_rounds(outcomes, GAMMA)].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampled_rounds_have_the_law_of_serving(tmp_path, temperature):
    world, trials = World(tmp_path / "target", temperature), 150
    random = np.random.default_rng(7)
    served = [world.serve(random) for _ in range(trials)]
    replayed = [world.replay(random, seed) for seed in range(trials)]
    for measure in (len, lambda rounds: rounds[0], lambda rounds: rounds[0] == 0):
        ours, theirs = (np.array([measure(rounds) for rounds in each], float) for each in (replayed, served))
        assert theirs.std() > 0.2
        z = (ours.mean() - theirs.mean()) / np.sqrt((ours.var() + theirs.var()) / trials)
        assert abs(z) < 3, (z, ours.mean(), theirs.mean())


def test_a_draft_is_accepted_with_the_overlap_of_both_distributions(tmp_path):
    world = World(tmp_path / "target", 1.0)
    tokens = world.write(np.random.default_rng(1), 1)
    anchor = len(tokens) - 1
    sequence, logits = world.states(tokens)
    block = served_draft(world.drafter, sequence, anchor, np.zeros(GAMMA))
    p_target = torch.from_numpy(logits[anchor]).softmax(0)
    overlap = float(torch.minimum(block.draft_probs[0, 0], p_target[block.draft_ids[0, 0].long()]).sum())
    accepted = 0.0
    for token, chance in enumerate(p_target.tolist()):
        response = recorded(world.states(np.append(tokens, [token, 7]).astype(np.int32))[0], world.head, 0)
        low, high = 0.0, 1.0         # accepted below some uniform, and not above it
        for _ in range(12):
            middle = (low + high) / 2
            decided = dataclasses.replace(response, uniforms=np.full(len(tokens) + 2, middle))
            stands = replay_drafter(world.drafter, decided, WINDOW).accepted[0]
            low, high = (middle, high) if stands else (low, middle)
        accepted += chance * low
    assert 0.2 < overlap < 0.95
    assert accepted == pytest.approx(overlap, abs=1e-3)


def test_a_token_outside_a_reduced_vocabulary_is_never_accepted(language):
    drafter = half_trained(language, "vanilla")
    sequence = greedy_sequences(language)[0]
    response = recorded(sequence, drafter.lm_head.weight, 0)
    whole = replay_drafter(drafter, response, WINDOW)
    kept = np.setdiff1d(np.arange(VOCABULARY), sequence.tokens[20:24])
    reduced = replay_drafter(reduce_vocabulary(drafter, kept), response, WINDOW)
    labels = sequence.tokens[sequence.prompt_length + 1 :]
    outside = ~np.isin(labels, kept)
    assert outside.any() and not reduced.accepted[outside].any()
    assert whole.accepted[outside].any()


def sequence_of(tokens: list[int], prompt: int) -> Recorded:
    sequence = TrainingSequence(
        id="x/0", domain="chat", temperature=0.0, prompt_length=prompt, tokens=np.array(tokens, np.int32),
        taps=np.zeros((len(tokens), 1, 2), np.float16), last=np.zeros((len(tokens), 2), np.float16),
        log_z=np.zeros(len(tokens), np.float32), tap_places=(0,),
    )  # fmt: skip
    return recorded(sequence, torch.zeros(50, 2), 0)


@pytest.mark.parametrize("gamma", [1, 3, 7])
def test_lookup_along_the_text_is_lookup_asked_anew_at_every_anchor(gamma):
    tokens = np.random.default_rng(3).integers(0, 3, 60).tolist()
    response = sequence_of(tokens, 5)
    outcomes, matches = replay_lookup(response, gamma, 2, 4)
    assert len(matches) == response.sequence.anchors
    for a in range(len(matches)):
        lookup = PromptLookup(2, 4)
        lookup.extend(tokens[: 6 + a])
        draft = lookup.draft(gamma)
        usable = draft.tokens[: len(tokens) - 2 - (5 + a)].tolist()
        stand = 0
        while stand < len(usable) and usable[stand] == tokens[6 + a + stand]:
            stand += 1
        assert (outcomes.drafted[a], outcomes.accepted[a], matches[a]) == (len(usable), stand, draft.match_length)


def test_lookup_drafts_where_it_found_a_match_and_the_drafter_elsewhere():
    lookup = Outcomes(np.array([2, 0, 3], np.int32), np.array([1, 0, 0], np.int32))
    drafter = Outcomes(np.array([4, 4, 4], np.int32), np.array([4, 3, 2], np.int32))
    mixed = lookup_first(lookup, np.array([3, 0, 5], np.int32), drafter)
    assert mixed.drafted.tolist() == [2, 4, 3] and mixed.accepted.tolist() == [1, 3, 0]


def test_a_round_at_the_end_leaves_room_for_the_targets_own_token():
    assert sequence_of(list(range(9)), 2).room(4).tolist() == [4, 4, 3, 2, 1, 0]


def test_rounds_commit_their_drafts_and_one_token_and_positions_count_what_was_tried():
    outcomes = Outcomes(np.array([3, 3, 3, 3, 2, 1, 0], np.int32), np.array([1, 3, 0, 2, 2, 0, 0], np.int32))
    assert anchors_of_rounds(outcomes, 3).tolist() == [0, 2, 3, 6]
    found = tally([outcomes], 3)
    assert found.rounds.tolist() == [4] and found.tokens.tolist() == [7]
    assert found.tested.tolist() == [[3, 2, 1]] and found.accepted.tolist() == [[2, 1, 0]]
    assert found.truncated_rounds.tolist() == [[len([0, 2, 3, 5, 6]), 4, 4]]
    assert found.tokens.sum() / found.rounds.sum() == 1 + found.accepted.sum() / found.rounds.sum()

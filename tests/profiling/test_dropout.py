"""Dropout: its masks, its gradients, and transformers' own models with the same masks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
from trainplan.profiling.models.model import Model, load_model, model_from_config
from trainplan.profiling.models.sublayers import DRAWN_AT_ONCE, Attention, attention_block

torch = pytest.importorskip("torch")

from trainplan.execution.training.single_process import Reference  # noqa: E402
from trainplan.profiling.models import dropout, torch_units  # noqa: E402
from trainplan.profiling.models.blockwise import Scores, blockwise_attention  # noqa: E402
from trainplan.profiling.models.dropout import Draw, DroppedHeads, Mask, drop, hidden_mask  # noqa: E402
from trainplan.profiling.models.torch_units import Shard  # noqa: E402

from tests.helpers.huggingface import float64_throughout, matched, same_architecture  # noqa: E402
from tests.profiling.test_huggingface import BERT, GPT2, LLAMA  # noqa: E402

DRAW = Draw(seed=3, step=5, unit=2, samples=(4, 0, 9))
EVERYTHING = slice(None)
DROPPING: dict[str, dict[str, Any]] = {
    "gpt2": GPT2 | {"embd_pdrop": 0.2, "attn_pdrop": 0.3, "resid_pdrop": 0.1},
    "bert": BERT | {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3},
    "llama": LLAMA | {"num_key_value_heads": 2, "attention_dropout": 0.3},
}


def _hidden(draw: Draw, tokens: int = 6, width: int = 40, probability: float = 0.3) -> Any:
    """Which numbers of hidden states are dropped, (rows, tokens, width)."""
    x = torch.ones(len(draw.samples), tokens, width)
    return hidden_mask(draw, "output", probability, x).drop(x) == 0


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_numbers_are_dropped_as_often_as_requested(probability: float) -> None:
    """In all, in each column, and together with any neighbour: within five standard deviations of independent ones."""
    x = torch.ones(4, 100, 256)
    dropped = hidden_mask(Draw(0, 0, 0, (0, 1, 2, 3)), "output", probability, x).drop(x) == 0
    assert torch.equal(x[~dropped], torch.full_like(x[~dropped], 1 / (1 - probability)))
    z = (dropped.double().view(400, 256) - probability) / (probability * (1 - probability)) ** 0.5
    assert abs(z.mean()) * z.numel() ** 0.5 < 5
    for sums in (z.sum(0) / 400**0.5, z.sum(1) / 256**0.5):
        assert abs(sums.pow(2).mean() - 1) * (len(sums) / 2) ** 0.5 < 5
    for down, right in ((0, 1), (1, 0), (1, 1), (0, 16), (100, 0), (7, 3)):
        both = z[: 400 - down, : 256 - right] * z[down:, right:]
        assert abs(both.mean()) * both.numel() ** 0.5 < 5
        four = both * z[down:, : 256 - right] * z[: 400 - down, right:] if down and right else both
        assert abs(four.mean()) * four.numel() ** 0.5 < 8


def test_a_mask_is_of_its_sample_step_unit_and_seed() -> None:
    """Wherever a sample stands among others its numbers are the same; all else gives other ones."""
    whole = _hidden(DRAW)
    for index, sample in enumerate(DRAW.samples):
        assert torch.equal(_hidden(Draw(3, 5, 2, (sample,)))[0], whole[index])
    others = [Draw(4, 5, 2, (4,)), Draw(3, 6, 2, (4,)), Draw(3, 5, 1, (4,)), Draw(3, 5, 2, (5,))]
    drawn = [whole[0], *(_hidden(other)[0] for other in others)]
    x = torch.ones(1, 6, 40)
    drawn.append(hidden_mask(Draw(3, 5, 2, (4,)), "input", 0.3, x).drop(x)[0] == 0)
    for i, one in enumerate(drawn):
        assert all(0.45 < (one == other).double().mean() < 0.7 for other in drawn[:i])  # 0.58 of independent ones are alike


def test_masks_are_drawn_alike_in_any_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = _hidden(DRAW)
    monkeypatch.setattr(dropout, "DRAWN_AT_ONCE", 100)
    assert torch.equal(_hidden(DRAW), whole)


def test_blocks_of_attention_are_of_a_bounded_size() -> None:
    for shape in ((4, 12, 100, 100), (64, 2, 32, 32), (2, 16, 1024, 1024), (1, 4, 9000, 9000), (3, 5, 7, 2 * DRAWN_AT_ONCE)):
        rows, heads, queries = block = attention_block(*shape)
        assert all(1 <= part <= size for part, size in zip(block, shape[:3], strict=True))
        assert rows * heads * queries * shape[3] <= max(DRAWN_AT_ONCE, shape[3])


def test_the_gradient_is_that_of_the_mask() -> None:
    torch.manual_seed(0)
    x, weights = torch.randn(3, 6, 40, dtype=torch.float64, requires_grad=True), torch.randn(3, 6, 40, dtype=torch.float64)
    y = drop(x * 1.0, DRAW, "output", 0.3)
    kept = (~_hidden(DRAW)) / 0.7
    torch.testing.assert_close(y, x * kept)
    (y * weights).sum().backward()
    torch.testing.assert_close(x.grad, kept * weights)
    assert drop(x, None, "output", 0.3) is x
    assert drop(x, DRAW, "output", 0.0) is x


@pytest.mark.parametrize("drawn_at_once", [DRAWN_AT_ONCE, 200, 60, 20])
@pytest.mark.parametrize(
    ("kv_heads", "dropping", "scores"),
    [
        (4, True, Scores(5**-0.5, causal=True)),
        (4, True, Scores(5**-0.5)),
        (2, True, Scores(0.3, causal=True, sliding=3)),
        (2, False, Scores(0.3, softcap=0.7, causal=True)),
        (4, False, Scores(0.3, softcap=0.7, slopes=(0.5, 0.25, 0.125, 0.0625), causal=True)),
        (1, False, Scores(1.0, causal=True, sliding=4)),
        (2, True, Scores(1.0, 1.5, (0.3, 0.2, 0.1, 0.05), True, 2)),
    ],
)
def test_attention_in_blocks_is_that_of_whole_matrices(
    kv_heads: int, dropping: bool, scores: Scores, drawn_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mask is right for any size: several rows, some heads, some queries at once."""
    monkeypatch.setattr("trainplan.profiling.models.sublayers.attention.DRAWN_AT_ONCE", drawn_at_once)
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, n, 7, 5, dtype=torch.float64, requires_grad=True) for n in (4, kv_heads, kv_heads))
    heads = DroppedHeads(DRAW, 0.3, 0, 4) if dropping else None
    mixed = blockwise_attention(q, k, v, scores, heads).transpose(1, 2)
    keys, values = (t.repeat_interleave(4 // kv_heads, 1) for t in (k, v))
    made = q @ keys.mT * scores.scale
    if scores.softcap:
        made = scores.softcap * torch.tanh(made / scores.softcap)
    away = torch.arange(7).unsqueeze(1) - torch.arange(7)
    if scores.slopes:
        made = made - torch.tensor(scores.slopes, dtype=torch.float64).view(-1, 1, 1) * away
    unmet = (away < 0 if scores.causal else away > 7) | (away >= (scores.sliding or 8))
    probabilities = made.masked_fill(unmet, float("-inf")).softmax(-1)
    whole = (probabilities if heads is None else _kept(heads.mask(q, k), made) * probabilities) @ values
    torch.testing.assert_close(mixed, whole)
    weights = torch.randn_like(whole)
    ours, theirs = (torch.autograd.grad((y * weights).sum(), (q, k, v)) for y in (mixed, whole))
    torch.testing.assert_close(ours, theirs)


def _kept(mask: Mask, x: Any) -> Any:
    """The factors that a whole tensor is multiplied by."""
    if x.dim() == 4:
        return (~mask.dropped(EVERYTHING, EVERYTHING, EVERYTHING)).to(x.dtype) * mask.scale
    return mask.drop(torch.ones_like(x))


@pytest.mark.parametrize("family", DROPPING)
@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_add_up_with_dropout(family: str, tp: int) -> None:
    """Partial outputs of tensor-parallel ranks have the masks of the whole: each head its own, all ranks the hidden states'."""
    torch.manual_seed(0)
    model = model_from_config(DROPPING[family], family, 11, "float64")
    for part in {unit.sublayer for unit in model.units[:-1]}:
        if not part.splits_into(tp):
            continue
        whole = torch_units.whole_parameters(part, 1)
        is_embedding = part.kind == "embedding"
        x = torch.randint(61, (3, 11)) if is_embedding else torch.randn(part.input_shape(3), dtype=torch.float64)
        shared = 0
        for shard in (Shard(tp, index) for index in range(tp)):
            values = {p.name: torch_units.sharded(p, whole[p.name], shard) for p in part.parameters()}
            shared = shared + torch_units.forward(part, values, x, shard, draw=DRAW)
        once = torch_units.forward(part, whole, x, Shard(), draw=DRAW)
        torch.testing.assert_close(shared, once, rtol=0, atol=1e-12)
        if part.draws:
            assert not torch.allclose(once, torch_units.forward(part, whole, x, Shard()))


def _masks(model: Model, reference: Reference, samples: tuple[int, ...], x: Any) -> Iterator[Mask]:
    """The masks of a step, in the order in which transformers comes to its dropouts."""
    rows, tokens, hidden = len(samples), model.tokens, model.units[-1].sublayer.hidden
    states = torch.empty(rows, tokens, hidden)
    for position, unit in enumerate(model.units[:-1]):
        part, draw = unit.sublayer, Draw(reference.seed, reference.steps, position, samples)
        if isinstance(part, Attention):
            if part.input_dropout:
                yield hidden_mask(draw, "input", part.input_dropout, states)
            queries = torch.empty(rows, part.heads, tokens, 1)
            yield DroppedHeads(draw, part.attention_dropout, 0, part.heads).mask(queries, queries)
        if part.dropout:
            yield hidden_mask(draw, "output", part.dropout, states)


@pytest.mark.parametrize("family", DROPPING)
def test_models_drop_where_transformers_does(family: str) -> None:
    """In float64, the loss and all gradients of a model in training are those of transformers with the same masks."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = model_from_config(DROPPING[family], family, 11, "float64")
    reference = Reference(model, seed=1)
    tokens = torch.randint(model.vocabulary, (3, 12))
    with float64_throughout():
        other = same_architecture(transformers, model).double().train()
        with torch.no_grad():
            for parameter, value in matched(other, model, reference.parameters):
                parameter.copy_(value)
        for _ in range(2):  # other masks with every step
            masks = _masks(model, reference, (0, 1, 2), tokens)

            def dropped(x: Any, p: float, training: bool, inplace: bool = False, masks: Iterator[Mask] = masks) -> Any:
                if not training or not p:
                    return x
                mask = next(masks)
                assert mask.probability == p
                return x * _kept(mask, x)

            other.zero_grad()
            with patch.object(torch.nn.functional, "dropout", dropped):
                logits = other(tokens[:, :-1]).logits
            assert next(masks, None) is None, "every mask has its place"
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            assert reference.gradients(tokens) == pytest.approx(float(loss.detach()), abs=1e-12)
            gradients = [{name: p.grad for name, p in values.items()} for values in reference.parameters]
            for parameter, gradient in matched(other, model, gradients):
                torch.testing.assert_close(gradient, parameter.grad, rtol=1e-10, atol=1e-12)
            reference.steps += 1


def test_dropout_changes_no_digest_and_no_names_of_sublayers() -> None:
    """Plans and profiles made before a model dropped anything are of the same model; so are those of other probabilities."""
    for name, fields in (("gpt2", {"attn_pdrop": 0.0, "resid_pdrop": 0.3}), ("bert-large", {"hidden_dropout_prob": 0.0})):
        model = load_model(name)
        assert list(model.sublayers) == ["embedding", "attention", "ffn", "head"]
        other = model.with_fields(**fields)
        assert other.digest == model.digest
        assert list(other.sublayers) == list(model.sublayers)


def test_what_is_evaluated_drops_nothing() -> None:
    model = model_from_config(DROPPING["gpt2"], "gpt2", 11, "float64")
    reference, tokens = Reference(model, 0), torch.randint(61, (2, 11))
    plain = Reference(model.with_fields(embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0), 0)
    torch.testing.assert_close(reference.logits(tokens), plain.logits(tokens), rtol=0, atol=1e-12)
    assert not torch.allclose(reference.logits(tokens, training=True), plain.logits(tokens))

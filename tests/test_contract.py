"""What every method must satisfy. A new line in METHODS is tested here without a new test."""

import copy
import itertools

import pytest
import torch
from make import CASES, CLOCK, PRETRAINED, VOCAB, WIDTH, batch, build, shares_or_cosines
from torch.nn.functional import pad

from grainline.methods.base import Method, dot
from grainline.methods.caft import CAFT
from grainline.methods.flair import FLAIR
from grainline.methods.shared import clamp_scales
from grainline.training.step import recompute_layers, step
from grainline.types import concat, each, rows


@pytest.fixture(params=CASES)
def method(request: pytest.FixtureRequest) -> Method:
    return build(request.param)


def test_encodings_have_unit_vectors_and_one_row_per_item(method: Method) -> None:
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    assert a.vector.shape == (4, WIDTH)
    assert b.vector.shape == (8, WIDTH)
    for x in (a.vector, b.vector[b.item >= 0]):
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(len(x)))


def test_score_is_the_dot_product_unless_pairwise(method: Method) -> None:
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    assert method.score(a, b).shape == (4, 8)
    assert torch.equal(method.score(a, b), dot(a, b)) == (not method.pairwise)


def test_score_of_a_pair_does_not_depend_on_its_neighbours(method: Method) -> None:
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    whole = method.score(a, b)
    for i, j in itertools.product(range(4), range(8)):
        alone = method.score(rows(a, slice(i, i + 1)), rows(b, slice(j, j + 1)))
        torch.testing.assert_close(whole[i, j], alone[0, 0])


def test_precomputed_images_score_alike_with_any_texts_and_in_half_precision(method: Method) -> None:
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    before, score = method.precompute(a), method.score(a, b)
    assert method.precompute(before) is before
    torch.testing.assert_close(method.score(before, b), score)
    torch.testing.assert_close(method.score(rows(before, slice(1, 3)), rows(b, slice(2, 3))), score[1:3, 2:3])
    if before is a:
        return
    assert method.pairwise
    assert type(before.precomputed) is method.precomputed_class
    assert (before.tokens.shape[1], before.mask.shape[1], before.extra) == (0, 0, None)
    half = each(lambda x: x.half() if x.is_floating_point() else x, before.precomputed)
    torch.testing.assert_close(method.score(before._replace(precomputed=half), b), score, atol=5e-3, rtol=0)


def test_score_reads_no_extra_of_texts(method: Method) -> None:
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    assert torch.equal(method.score(a, b._replace(extra=None)), method.score(a, b))


def test_encoding_of_a_row_does_not_depend_on_its_neighbours(method: Method) -> None:
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    torch.testing.assert_close(method.encode_images(rows(images, slice(2, 3))).vector, a.vector[2:3])
    torch.testing.assert_close(method.encode_texts(rows(texts, slice(4, 5))).vector, b.vector[4:5])


@pytest.mark.parametrize("margin", [(0, 3), (0, 0, 0, 1)], ids=["tokens", "parts"])
def test_padding_inside_a_text_changes_nothing(method: Method, margin: tuple[int, ...]) -> None:
    images, texts = batch()
    longer = texts._replace(ids=pad(texts.ids, margin, value=7), mask=pad(texts.mask, margin))
    a, real = method.encode_images(images), texts.item >= 0
    torch.testing.assert_close(
        method.score(a, method.encode_texts(texts))[:, real],
        method.score(a, method.encode_texts(longer))[:, real],
    )


def test_padding_rows_change_nothing(method: Method) -> None:
    images, texts = batch()
    short = copy.deepcopy(method)
    terms = step(method, images, texts, CLOCK)
    torch.testing.assert_close(terms, step(short, images, rows(texts, texts.item >= 0), CLOCK))
    assert_same_grads(method, short)


def test_content_of_padding_rows_changes_nothing(method: Method) -> None:
    images, texts = batch()
    padding = (texts.item < 0)[:, None, None]
    other = texts._replace(mask=texts.mask | padding, ids=texts.ids.masked_fill(padding, 3))
    torch.testing.assert_close(step(method, images, texts, CLOCK), step(method, images, other, CLOCK))


def test_a_foil_is_a_negative_and_never_a_positive(method: Method) -> None:
    images, texts = batch()
    images = images._replace(pixels=images.pixels.double())  # a negative may add 1e-5 to a loss of 40
    without = rows(texts, texts.item != 1)
    method.double()
    assert sum(step(method, images, texts, CLOCK).values()) > sum(
        step(copy.deepcopy(method), images, without, CLOCK).values()
    )


def test_every_trained_parameter_gets_a_gradient_within_two_steps(method: Method) -> None:
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1)
    moved = {name: torch.zeros(()) for name, _ in method.named_parameters()}
    for _ in range(2):
        optimizer.zero_grad()
        step(method, *batch(), CLOCK)
        for name, p in method.named_parameters():
            assert p.grad is not None, name
            moved[name] = moved[name] + p.grad.abs().sum()
        optimizer.step()
    assert all(total > 0 for total in moved.values()), [name for name, total in moved.items() if total == 0]


def test_cached_step_has_the_gradients_of_step(method: Method) -> None:
    images, texts = batch()
    images = images._replace(pixels=images.pixels.double())  # in float64, so that the order of a sum is small
    twins = {chunk: copy.deepcopy(method.double()) for chunk in (1, 3)}
    terms = step(method, images, texts, CLOCK)
    for chunk, twin in twins.items():
        cached = step(twin, images, texts, CLOCK, chunk)
        torch.testing.assert_close(terms, cached, msg=lambda m, chunk=chunk: f"chunks of {chunk}: {m}")
        assert_same_grads(method, twin)


@pytest.mark.parametrize("case", CASES)
def test_cached_step_repeats_the_noise_of_its_first_pass(case: str) -> None:
    noise = ("image.drop_path=0.5", "text.drop_path=0.5", "image.depth=2", "text.depth=2")
    if case.endswith("-segments"):
        noise = ("image.drop_path=0.5", "text.drop_path=0.5", "image.depths=[2,1,1,1]", "text.depth=2")
    if case in PRETRAINED:  # the library's models know dropout of attention
        config = "architecture.config"
        noise = tuple(
            f"{side}.{config}.{own}_config.attention_dropout=0.5"
            for side in ("image", "text")
            for own in ("vision", "text")
        )
    method = build(case, *noise)
    twin = copy.deepcopy(method)
    terms = []
    for m, run in ((method, step), (twin, lambda *args: step(*args, chunk=100))):
        torch.manual_seed(1)
        terms.append(run(m.train(), *batch(), CLOCK))
    torch.testing.assert_close(*terms)
    assert_same_grads(method, twin)
    assert not torch.equal(
        torch.stack(list(terms[0].values())), torch.stack(list(step(twin.eval(), *batch(), CLOCK).values()))
    )


def test_recomputed_activations_change_nothing(method: Method) -> None:
    twin = copy.deepcopy(method)
    recompute_layers(twin)
    torch.testing.assert_close(step(method, *batch(), CLOCK), step(twin, *batch(), CLOCK))
    assert_same_grads(method, twin)


def test_learns_one_batch_by_heart(method: Method) -> None:
    images, texts = batch()
    optimizer = torch.optim.Adam(method.train().parameters(), lr=3e-3)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        losses.append(float(sum(step(method, images, texts, CLOCK).values())))
        optimizer.step()
        clamp_scales(method)
        if len(losses) >= 10 and losses[-1] < 0.6 * losses[0]:
            return
    pytest.fail(f"after 60 steps the loss went from {losses[0]} to {losses[-1]}")


def test_heat_is_signed_and_finite_or_the_distribution_it_promises(method: Method) -> None:
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    heat = method.heat(a, rows(b, slice(0, 8, 2)))
    assert heat.shape == a.mask.shape
    assert heat.shape[1] > 0
    assert heat.isfinite().all()
    if type(method).heat is Method.heat:
        torch.testing.assert_close(heat, shares_or_cosines(a, rows(b, slice(0, 8, 2))))
    if method.heat_is_distribution:
        assert (heat >= 0).all()
        total = heat.sum(-1)
        assert (total > 0).all()
        assert (total <= 1 + 1e-6).all()  # below 1 only where the method has a slot for looking at nothing
        if not isinstance(method, FLAIR | CAFT):
            torch.testing.assert_close(total, torch.ones(4))
    else:
        assert (heat < 0).any()


def test_heat_of_a_row_depends_on_its_own_text(method: Method) -> None:
    images, texts = batch()
    a, b = method.encode_images(images), method.encode_texts(texts)
    heat = method.heat(a, rows(b, torch.tensor([0, 2, 4, 6])))
    other = method.heat(a, rows(b, torch.tensor([0, 4, 4, 6])))
    torch.testing.assert_close(heat[[0, 2, 3]], other[[0, 2, 3]])
    assert not torch.equal(heat[1], other[1])


def test_method_says_what_it_reads(method: Method) -> None:
    assert (method.size, method.context, method.grid) == (8, 24, None if method.segmented else (2, 2))


def test_method_with_too_long_texts_is_an_error(method: Method) -> None:
    _, texts = batch()
    longer = texts._replace(ids=texts.ids.repeat(1, 1, 8) % VOCAB, mask=texts.mask.repeat(1, 1, 8))
    with pytest.raises(ValueError, match="more than 24 tokens"):
        method.encode_texts(longer)


def test_concat_undoes_rows(method: Method) -> None:
    a = method.encode_images(batch()[0])
    torch.testing.assert_close(concat([rows(a, slice(0, 1)), rows(a, slice(1, 4))]), a)


def assert_same_grads(a: Method, b: Method) -> None:
    for (name, p), q in zip(a.named_parameters(), b.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=lambda m, name=name: f"{name}: {m}")


def test_nothing_is_made_on_the_default_device(method: Method) -> None:
    # A user may set one; what is computed belongs where the inputs are.
    images, texts = batch()
    results = [step(method, images, texts, CLOCK)]
    with torch.device("meta"):  # any tensor made here without a device would have no values
        results.append(step(method, images, texts, CLOCK))
        step(method, images, texts, CLOCK, 3)
        with torch.no_grad():
            score = method.score(method.encode_images(images), method.encode_texts(texts))
    assert results[0].keys() == results[1].keys()
    for name, expected in results[0].items():
        assert torch.equal(results[1][name], expected), name
    assert score.device.type == "cpu"

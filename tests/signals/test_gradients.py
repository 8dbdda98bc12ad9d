"""The gradient norm: right for every kind of gradient, and finite exactly if the gradients are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from guard.signals import GradientReader, careful_norm, nonfinite_names

SIZES = [(3,), (64, 64), (65, 64), (128, 300), (1,)]  # around the limit between small and large


def parameters(sizes: list[tuple[int, ...]], dtype: torch.dtype = torch.float32, seed: int = 0) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    made = [nn.Parameter(torch.zeros(s, dtype=dtype)) for s in sizes]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator).to(dtype)
    return made


def reader(params: list[nn.Parameter]) -> GradientReader:
    return GradientReader(torch.optim.SGD(params, lr=0.1))


def true_norm(params: list[nn.Parameter]) -> float:
    return math.sqrt(sum(float(p.grad.double().pow(2).sum()) for p in params if p.grad is not None))


@pytest.mark.parametrize("sizes", [SIZES, SIZES * 20, [(3,)], [(300, 300)], [(3,)] * 500, [(200, 100)] * 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_it_is_the_global_l2_norm(sizes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    params = parameters(sizes, dtype)
    r = reader(params)
    assert r.read() == pytest.approx(true_norm(params), rel=1e-5)
    assert r.count == len(params)


def test_it_is_that_of_clip_grad_norm() -> None:
    params = parameters(SIZES)
    assert reader(params).read() == pytest.approx(float(nn.utils.clip_grad_norm_(params, 1e9)), rel=1e-5)


def test_parameters_without_a_gradient_are_left_out() -> None:
    params = parameters(SIZES)
    params[1].grad = None
    r = reader(params)
    assert r.read() == pytest.approx(true_norm(params), rel=1e-5)
    assert r.count == len(SIZES) - 1


def test_no_gradient_at_all_is_zero() -> None:
    params = parameters(SIZES)
    for p in params:
        p.grad = None
    r = reader(params)
    assert (r.read(), r.count) == (0.0, 0)


@pytest.mark.parametrize("where", range(len(SIZES)))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_bad_number_anywhere_shows(where: int, value: float, dtype: torch.dtype) -> None:
    params = parameters(SIZES, dtype)
    params[where].grad.view(-1)[-1] = value  # type: ignore[union-attr]
    assert not math.isfinite(reader(params).read())


@pytest.mark.parametrize("size", [1e20, 1e30, 3e38, 1e-30, 1e-42])
def test_finite_numbers_whose_squares_are_none_have_a_norm(size: float) -> None:
    params = parameters([(3,), (300, 300)])
    for p in params:
        p.grad = torch.full_like(p, size)
    expected = float(torch.tensor(size).double()) * math.sqrt(3 + 300 * 300)
    assert reader(params).read() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("big", [(3,), (300, 300)])
def test_a_half_precision_gradient_whose_square_overflows_it(big: tuple[int, ...]) -> None:
    params = parameters([big], torch.float16)
    params[0].grad = torch.full(big, 60_000.0, dtype=torch.float16)
    assert reader(params).read() == pytest.approx(60_000 * math.sqrt(math.prod(big)), rel=1e-2)


def test_sparse_gradients() -> None:
    embedding = nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([1, 1, 7])).pow(2).sum().backward()
    dense = embedding.weight.grad.to_dense()  # type: ignore[union-attr]
    r = GradientReader(torch.optim.SGD(embedding.parameters(), lr=0.1))
    assert r.read() == pytest.approx(float(dense.norm()), rel=1e-5)
    with torch.no_grad():
        embedding.weight.grad = embedding.weight.grad * math.inf  # type: ignore[operator]
    assert not math.isfinite(r.read())


def test_complex_and_mixed_gradients() -> None:
    params = [*parameters([(5,)]), *parameters([(5,)], torch.float64), nn.Parameter(torch.zeros(2, dtype=torch.cfloat))]
    params[2].grad = torch.tensor([3 + 4j, 0j])
    rest = true_norm(params[:2])
    assert reader(params).read() == pytest.approx(math.hypot(rest, 5.0), rel=1e-5)


def test_views_and_strides() -> None:
    p = nn.Parameter(torch.zeros(30, 20))
    p.grad = torch.randn(20, 30).t()
    assert reader([p]).read() == pytest.approx(float(p.grad.norm()), rel=1e-5)


def test_a_group_that_is_added_later_is_read_too() -> None:
    params = parameters([(3,)])
    optimizer = torch.optim.SGD(params, lr=0.1)
    r = GradientReader(optimizer)
    r.read()
    more = parameters([(4, 4)], seed=1)
    optimizer.add_param_group({"params": more})
    assert r.read() == pytest.approx(true_norm(params + more), rel=1e-5)


def test_reading_changes_nothing() -> None:
    params = parameters(SIZES)
    before = [p.grad.clone() for p in params if p.grad is not None]
    versions = [p.grad._version for p in params if p.grad is not None]
    reader(params).read()
    assert all(torch.equal(a, p.grad) for a, p in zip(before, params, strict=True) if p.grad is not None)
    assert versions == [p.grad._version for p in params if p.grad is not None]


@given(numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_a_careful_norm_of_finite_numbers_is_finite_and_right(numbers: list[float]) -> None:
    norm = careful_norm([torch.tensor(numbers)])
    assert norm == pytest.approx(math.hypot(*numbers), rel=1e-4, abs=1e-45)


def test_a_careful_norm_of_nothing() -> None:
    assert careful_norm([]) == 0.0
    assert careful_norm([torch.zeros(0), torch.zeros(3)]) == 0.0


def test_names_of_those_that_are_not_finite() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert nonfinite_names(model) == []
    model[1].weight.grad[0, 0] = math.nan
    model[0].bias.grad[1] = math.inf
    assert nonfinite_names(model) == ["0.bias", "1.weight"]
    assert nonfinite_names(model, most=1) == ["0.bias"]

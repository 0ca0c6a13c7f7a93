"""Combining: every op and dtype against Python's own numbers, the order of the fold, and what is refused."""

import functools
import math
import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frogtorch.arithmetic import BLOCK, OPS, check, combine, wide

INTEGERS = {
    torch.int8: (8, True), torch.int16: (16, True), torch.int32: (32, True), torch.int64: (64, True),
    torch.uint8: (8, False), torch.uint16: (16, False), torch.uint32: (32, False), torch.uint64: (64, False),
}
"""Bits, and whether one of them is a sign."""

PYTHON = {
    "sum": operator.add, "product": operator.mul, "min": min, "max": max, "band": operator.and_, "bor": operator.or_,
    "bxor": operator.xor,
}


def wrapped(value, bits, signed):
    """What C keeps of a whole number in an integer of so many bits."""
    value %= 1 << bits
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def integers(values, dtype):
    """A tensor of whole numbers, also of those that do not fit into a signed 64-bit one."""
    bits, _ = INTEGERS[dtype]
    data = b"".join((value % (1 << bits)).to_bytes(bits // 8, "little") for value in values)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(dtype)


@pytest.mark.parametrize("op", PYTHON)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_integers_wrap_around_as_in_c(dtype, op, data):
    if dtype == torch.uint64 and op in ("min", "max"):
        return  # refused, see below
    bits, signed = INTEGERS[dtype]
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    number = st.one_of(st.integers(low, high), st.sampled_from([low, low + 1, 0, 1, high - 1, high]))
    columns = data.draw(st.lists(st.lists(number, min_size=3, max_size=3), min_size=1, max_size=9))
    parts = [integers(part, dtype) for part in zip(*columns, strict=True)]
    into = torch.empty(len(columns), dtype=dtype)
    combine(into, parts, op)
    expected = [wrapped(functools.reduce(PYTHON[op], column), bits, signed) for column in columns]
    assert into.tolist() == expected


@pytest.mark.parametrize(("op", "expected"), [
    # Of the columns (1 1 1), (1 0 1), (1 0 0), (0 0 0), what Gloo has for them.
    ("sum", [True, True, True, False]), ("product", [True, False, False, False]),
    ("max", [True, True, True, False]), ("min", [True, False, False, False]),
    ("bor", [True, True, True, False]), ("band", [True, False, False, False]),
    ("bxor", [True, False, True, False]),
])
def test_truth(op, expected):
    parts = [torch.tensor(values) for values in ([True, True, True, False], [True, False, False, False],
                                                 [True, True, False, False])]
    into = torch.empty(4, dtype=torch.bool)
    combine(into, parts, op)
    assert into.tolist() == expected
    assert into.view(torch.uint8).tolist() == [int(value) for value in expected]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64,
                                   torch.complex128], ids=str)
def test_fractions(dtype):
    parts = [torch.tensor(values).to(dtype) for values in ([1.0, 2.5, -4.0], [2.0, 0.5, 8.0], [3.0, -1.0, 5.0])]
    expected = {"sum": [6, 2, 9], "avg": [2, 2 / 3, 3], "product": [6, -1.25, -160]}
    if not dtype.is_complex:
        expected |= {"min": [1, -1, -4], "max": [3, 2.5, 8]}
    for op, values in expected.items():
        into = torch.empty(3, dtype=dtype)
        combine(into, parts, op)
        assert into.tolist() == torch.tensor(values, dtype=torch.float64).to(wide(dtype)).to(dtype).tolist(), op


def test_complex_numbers():
    parts = [torch.tensor([1 + 2j]), torch.tensor([3 - 1j]), torch.tensor([2j])]
    found = {}
    for op in ("sum", "product", "avg"):
        into = torch.empty(1, dtype=torch.complex64)
        combine(into, parts, op)
        found[op] = into.item()
    # (1 + 2i)(3 - i) = 5 + 5i; times 2i: -10 + 10i.
    assert found == {"sum": 4 + 3j, "product": -10 + 10j, "avg": pytest.approx((4 + 3j) / 3)}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_what_is_no_number_and_what_is_infinite(dtype):
    nan, inf = math.nan, math.inf
    parts = [torch.tensor(values, dtype=dtype) for values in ([nan, 1.0, inf, -inf, inf], [1.0, 2.0, -inf, -inf, 1.0],
                                                              [2.0, nan, 0.0, 1.0, 2.0])]
    expected = {
        "sum": [nan, nan, nan, -inf, inf], "avg": [nan, nan, nan, -inf, inf], "product": [nan, nan, nan, inf, inf],
        "max": [nan, nan, inf, 1.0, inf], "min": [nan, nan, -inf, -inf, 1.0],
    }
    for op, values in expected.items():
        into = torch.empty(5, dtype=dtype)
        combine(into, parts, op)
        assert into.tolist() == pytest.approx(values, nan_ok=True), op


@pytest.mark.parametrize(("dtype", "large"), [(torch.float16, 2048.0), (torch.bfloat16, 256.0)], ids=str)
def test_half_precision_is_folded_in_single_and_rounded_once(dtype, large):
    # large + 1 rounds to large in half precision, twice over; in single, large + 2, which half has.
    parts = [torch.tensor([value], dtype=dtype) for value in (large, 1.0, 1.0)]
    into = torch.empty(1, dtype=dtype)
    combine(into, parts, "sum")
    assert into.item() == large + 2
    # And no infinity on the way: three times the largest number, over three, is that number.
    most = torch.finfo(dtype).max
    combine(into, [torch.tensor([most], dtype=dtype)] * 3, "avg")
    assert into.item() == (most if dtype == torch.float16 else math.inf)


@pytest.mark.parametrize("place", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("count", [1, BLOCK, 2 * BLOCK + 3])
def test_the_fold_goes_from_left_to_right_whichever_part_is_the_target(place, count):
    # ((1e8 + 1) - 1e8) + 0.5 in float32: 1e8 + 1 rounds to 1e8, so 0.5; any other first pair gives 1.5 or 1.0.
    parts = [torch.full((count,), value) for value in (1e8, 1.0, -1e8, 0.5)]
    into = torch.empty(count) if place is None else parts[place]
    combine(into, parts, "sum")
    assert into.unique().tolist() == [0.5]


def test_a_single_part():
    for op in OPS.keys() - {"band", "bor", "bxor"}:
        into = torch.zeros(2)
        combine(into, [torch.tensor([3.0, -1.0])], op)
        assert into.tolist() == [3.0, -1.0]


@pytest.mark.parametrize(("op", "dtype", "instead"), [
    ("avg", torch.int32, "sum"), ("avg", torch.uint8, "sum"), ("avg", torch.bool, "sum"),
    ("max", torch.complex64, "view_as_real"), ("min", torch.complex128, "view_as_real"),
    ("max", torch.uint64, "int64"), ("min", torch.uint64, "int64"),
    ("band", torch.float32, "integer"), ("bor", torch.bfloat16, "integer"), ("bxor", torch.complex64, "integer"),
    ("sum", torch.float8_e4m3fn, "bfloat16"), ("max", torch.float8_e5m2, "bfloat16"),
    ("sum", torch.float4_e2m1fn_x2, "bfloat16"), ("sum", torch.qint8, "all_gather"), ("sum", torch.bits8, "all_gather"),
], ids=str)
def test_what_cannot_be_is_refused_with_op_and_dtype_and_what_to_use_instead(op, dtype, instead):
    with pytest.raises(TypeError, match=instead) as caught:
        check(op, dtype)
    assert f"cannot reduce {dtype} with {op}:" in str(caught.value)


def test_what_can_be_is_not_refused():
    for dtype in INTEGERS:
        for op in PYTHON:
            if (dtype, op) not in {(torch.uint64, "min"), (torch.uint64, "max")}:
                check(op, dtype)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        for op in ("sum", "avg", "product", "min", "max"):
            check(op, dtype)
    for dtype in (torch.complex64, torch.complex128):
        for op in ("sum", "avg", "product"):
            check(op, dtype)

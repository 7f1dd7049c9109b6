"""Properties of every variant, over batches that hypothesis draws: as the reference, and safe."""

import pytest
from drawn import EVERY, SAFE, RedZone, caller, calls, examples, garbage, launched
from hypothesis import given, seed
from hypothesis import strategies as st

from dsv4kernels import variants
from dsv4kernels.launches.trace import OUTSIDE, trace
from dsv4kernels.variants import candidates


def assert_as_the_reference(kernel, variant, arguments, gap):
    """Bit-exact, inputs untouched, outputs wholly written and nothing beside them."""
    zone = RedZone.of(kernel, arguments, gap)

    def call(*placed):
        return caller(kernel, variant)(*placed, out=zone.outputs)

    assert candidates.fault_of(call, kernel, arguments) is None
    zone.assert_kept()


@pytest.mark.parametrize(("kernel", "variant"), EVERY)
def test_every_variant_equals_the_reference(kernel, variant):
    @seed(f"{kernel} {variant}")  # other examples for each
    @examples(12)
    @given(calls(kernel), st.integers(0, 5))
    def holds(arguments, gap):
        assert_as_the_reference(kernel, variant, arguments, gap)

    holds()


@pytest.mark.parametrize(("kernel", "variant"), EVERY)
def test_no_variant_touches_what_is_outside_a_tensors_shape(kernel, variant):
    @seed(f"{kernel} {variant}")  # other examples for each
    @examples(4)
    @given(calls(kernel))
    def holds(arguments):
        launch = launched(caller(kernel, variant), arguments)
        if launch is not None:
            assert OUTSIDE not in set(trace(launch).tensor)

    holds()


@pytest.mark.parametrize(("kernel", "variant"), SAFE)
def test_own_variants_are_safe_whatever_the_values(kernel, variant):
    @seed(f"{kernel} {variant}")  # other examples for each
    @examples(12)
    @given(garbage(kernel))
    def holds(arguments):
        zone = RedZone.of(kernel, arguments, gap=3)
        launch = launched(caller(kernel, variant), arguments, zone.outputs)
        if launch is None:
            return
        accesses = trace(launch)
        assert OUTSIDE not in set(accesses.tensor)
        stored = accesses[accesses.op == "store"]
        assert not stored.duplicated(["tensor", "row", "column"]).any()
        zone.assert_kept()
        if kernel != "combine":
            assert_as_the_reference(kernel, variant, arguments, gap=3)

    holds()


def test_the_reference_is_not_a_variant_of_itself():
    assert not set(variants.REFERENCE.values()) & {caller(*each) for each in EVERY}

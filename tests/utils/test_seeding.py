"""Random streams are those of NumPy's seed sequences."""

import pickle

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from kvgym.utils.seeding import STREAMS, stream, stream_seed


def state(generator: np.random.Generator) -> object:
    return generator.bit_generator.state


@example(2**63 - 1, "arrivals", ())
@example(0, "thinking", (2**32 - 1, 1))
@given(
    st.integers(0, 2**63 - 1),
    st.sampled_from(STREAMS),
    st.lists(st.integers(0, 2**32 - 1), max_size=3).map(tuple),
)
def test_generators_and_their_descendants_equal_those_of_numpy(seed, name, part):
    sequence = np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name), *part))
    theirs, own = np.random.Generator(np.random.PCG64(sequence)), stream(seed, name, *part)
    assert state(own) == state(theirs)
    for one, other in zip(own.spawn(2) + own.spawn(1), theirs.spawn(2) + theirs.spawn(1), strict=True):
        assert state(one) == state(other)
        assert state(one.spawn(1)[0]) == state(other.spawn(1)[0])


def test_a_stream_has_the_seed_that_policies_get_and_continues_when_pickled():
    own = stream(5, "lengths", 2, 1)
    assert state(own) == state(np.random.Generator(np.random.PCG64(stream_seed(5, "lengths", 2, 1))))
    own.spawn(1)
    copy = pickle.loads(pickle.dumps(own))
    assert [state(child) for child in copy.spawn(2)] == [state(child) for child in own.spawn(2)]

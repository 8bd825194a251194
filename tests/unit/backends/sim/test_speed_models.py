"""Speed models give curves and are named by short texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.backends.sim.speed_models import parse_speed
from batuta.spec.problem import InputError


@pytest.mark.parametrize(
    ("text", "speeds"),
    [
        ("linear", [1, 2, 3, 4]),
        ("constant", [1, 1, 1, 1]),
        ("amdahl:0.5", [1, 4 / 3, 1.5, 1.6]),
        ("amdahl:0", [1, 2, 3, 4]),
        ("power:0.5", [1, 2**0.5, 3**0.5, 2]),
        ("alpha-beta:0,0", [1, 2, 3, 4]),
        (
            "alpha-beta:0.1,0.4",
            [1, 1 / (1 / 2 + 0.1 + 0.2), 1 / (1 / 3 + 0.1 + 0.8 / 3), 1 / (1 / 4 + 0.1 + 0.3)],
        ),
        ("alpha-beta:0.1:0.4", [1, 1.25, 1 / (1 / 3 + 0.1 + 0.8 / 3), 1 / 0.65]),
        ("table:10,18,25", [1, 1.8, 2.5, 2.5]),
        ("table: 1=10, 2=18, 4=30", [1, 1.8, 2.4, 3]),
        (" Amdahl:0.5 ", [1, 4 / 3, 1.5, 1.6]),
    ],
)
def test_a_model_gives_the_speed_relative_to_one_gpu(text, speeds):
    curve = parse_speed(text).curve(4)
    assert [curve.at(n) for n in range(1, 5)] == pytest.approx(speeds)
    assert curve.at(0) == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "unknown speed model ''"),
        ("amdal:0.1", "did you mean amdahl?"),
        ("linear:2", "takes 0 numbers, found 1"),
        ("amdahl", "takes 1 number, found 0"),
        ("amdahl:", "takes 1 number, found 0"),
        ("amdahl:1.5", "within 0..1"),
        ("amdahl:x", "'x' is not a number"),
        ("amdahl:nan", "nan is not a finite number"),
        ("power:-1", "-1 is not a finite number ≥ 0"),
        ("power:3", "within 0..2"),
        ("alpha-beta:0.1", "takes 2 numbers, found 1"),
        ("table:", "begins with the speed on 1 GPU"),
        ("table:2=1", "begins with the speed on 1 GPU"),
        ("table:1=1,1=2", "ascend without repeats"),
        ("table:1=1,x=2", "does not begin with a GPU count"),
        ("table:1,0", "above 0"),
        ("table:1=1,999999999=2", "at most 100,000 GPUs"),
        ("table:1e-300,1e300", "finite"),
    ],
)
def test_nonsense_is_refused_with_a_reason(text, said):
    with pytest.raises(InputError) as caught:
        parse_speed(text)
    assert said in str(caught.value)


numbers = st.floats(0, 1)
texts = st.one_of(
    st.just("linear"),
    st.just("constant"),
    numbers.map(lambda x: f"amdahl:{x}"),
    numbers.map(lambda x: f"power:{x}"),
    st.tuples(numbers, numbers).map(lambda x: f"alpha-beta:{x[0]},{x[1]}"),
    st.lists(st.floats(0.01, 100), min_size=1, max_size=6).map(lambda x: "table:" + ",".join(map(str, x))),
)


@given(texts)
def test_the_text_of_a_model_parses_back_to_it(text):
    model = parse_speed(text)
    assert parse_speed(str(model)) == model

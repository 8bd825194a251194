"""Messages as bytes: what the kubelet's own types make of them is in tests/kube/device_plugin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta.gpu.device_plugin import messages as m
from batuta.gpu.protobuf import Malformed, decode, encode

GOLDEN = [
    (m.Empty(), ""),
    (m.DevicePluginOptions(preferred_allocation=True), "1001"),
    (
        m.RegisterRequest("v1beta1", "a.sock", "batuta.dev/gpu-memory", m.DevicePluginOptions(True)),
        "0a07763162657461311206612e736f636b1a156261747574612e6465762f6770752d6d656d6f727922020801",
    ),
    (
        m.ListAndWatchResponse((m.Device("a", "Healthy"), m.Device("b"))),
        "0a0c0a016112074865616c7468790a030a0162",
    ),
    (m.ContainerPreferredAllocationRequest(("a",), (), 300), "0a016118ac02"),
    (m.ContainerAllocateResponse(envs={"B": "2", "A": ""}), "0a030a01410a060a0142120132"),
    (m.ContainerPreferredAllocationRequest(size=-1), "18ffffffffffffffffff01"),
]
"""Worked out by hand from the rules of the encoding."""


@pytest.mark.parametrize(("message", "text"), GOLDEN, ids=[type(one).__name__ for one, _ in GOLDEN])
def test_messages_are_encoded_by_the_rules(message: object, text: str) -> None:
    assert encode(message).hex() == text
    assert decode(type(message), bytes.fromhex(text)) == message


texts = st.text(max_size=8)
mounts = st.builds(m.Mount, texts, texts, st.booleans())
nodes = st.builds(m.DeviceSpec, texts, texts, texts)
answers = st.builds(
    m.ContainerAllocateResponse,
    st.dictionaries(texts, texts, max_size=3),
    st.lists(mounts, max_size=3).map(tuple),
    st.lists(nodes, max_size=3).map(tuple),
    st.dictionaries(texts, texts, max_size=3),
)


@given(answers)
def test_what_was_encoded_is_decoded_again(answer: m.ContainerAllocateResponse) -> None:
    response = m.AllocateResponse((answer, answer))
    assert decode(m.AllocateResponse, encode(response)) == response


def test_what_a_newer_kubelet_says_beyond_is_skipped() -> None:
    """Given fields of every wire type that nobody here knows, the others are read as ever."""
    beyond = bytes.fromhex("f80105f9010102030405060708fa010161fd0101020304")
    assert decode(
        m.DevicePluginOptions, beyond + encode(m.DevicePluginOptions(True)) + beyond
    ) == m.DevicePluginOptions(True)


@pytest.mark.parametrize(
    "raw",
    ["0a05", "0a", "08", "0b", "0aff", "08" + "ff" * 11, "0a02fffe", "08011201"],
    ids=["too short", "no length", "no number", "a group", "no end", "too long", "no text", "a broken tail"],
)
def test_bytes_that_are_no_message_are_refused(raw: str) -> None:
    with pytest.raises(Malformed):
        decode(m.RegisterRequest, bytes.fromhex(raw))


@given(st.binary(max_size=64))
def test_any_bytes_are_a_message_or_malformed(raw: bytes) -> None:
    try:
        found = decode(m.AllocateResponse, raw)
    except Malformed:
        return
    assert decode(m.AllocateResponse, encode(found)) == found

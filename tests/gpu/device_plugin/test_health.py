"""Cards that fall ill, as NVML tells of virtual GPUs."""

import json
from collections.abc import Mapping
from pathlib import Path

from tests.support.vgpu import VirtualNode

LOOK = """
import json, sys
from pathlib import Path
from batuta.gpu.device_plugin.inventory import NvmlCards
from batuta.gpu.vgpu.inject import FaultSpec, inject

node = Path({path!r})
seen = []
with NvmlCards() as cards:
    seen.append([(card.index, card.memory_mib, card.pci, card.illness) for card in cards.look()])
    for harm in {harms}:
        if "ordered" in harm:
            cards.withhold(dict(harm["ordered"]))
        else:
            inject(node, 1, FaultSpec(**harm))
            cards.wait()
        seen.append([card.illness for card in cards.look()])
print(json.dumps(seen))
"""


def look(node: VirtualNode, *harms: Mapping[str, object]) -> list[list[object]]:
    """What is seen of the cards at first, and after each harm that is done to the second one."""
    return list(json.loads(node.run_python(LOOK.format(path=str(node.path), harms=[dict(harm) for harm in harms]))))


def test_an_error_of_a_program_is_no_illness_and_one_of_the_card_is(tmp_path: Path) -> None:
    node = VirtualNode.make(tmp_path)
    first, *after = look(node, {"xid": 13}, {"xid": 95}, {"heal": True})
    assert first == [[0, 15360, "0000:01:00.0", ""], [1, 15360, "0000:02:00.0", ""]]
    assert after == [["", ""], ["", "Xid 95"], ["", "Xid 95"]]


def test_what_the_operator_takes_out_is_ill_and_well_again_when_it_is_put_back(tmp_path: Path) -> None:
    """Given a card with an Xid of its own, when the operator had it out and puts it back, it is forgiven."""
    node = VirtualNode.make(tmp_path)
    out = {"ordered": [(1, "Xid 95: uncontained memory error")]}
    _, *after = look(node, {"xid": 95}, out, {"ordered": []}, {"ordered": [(0, "straggler")]})
    assert after == [["", "Xid 95"], ["", out["ordered"][0][1]], ["", ""], ["straggler", ""]]


def test_a_state_that_ends_is_an_illness_that_ends(tmp_path: Path) -> None:
    node = VirtualNode.make(tmp_path)
    _, *after = look(node, {"uncorrected": 2}, {"heal": True})
    assert after == [["", "2 uncorrectable memory errors since the driver was loaded"], ["", ""]]


def test_a_card_that_was_lost_before_the_plugin_came_is_left_out_and_comes_back(tmp_path: Path) -> None:
    node = VirtualNode.make(tmp_path)
    look(node, {"xid": 79})
    first, healed = look(node, {"heal": True})
    assert [card[0] for card in first if isinstance(card, list)] == [0]
    assert healed == ["", ""]

"""Profiles are read, and refused with all their faults."""

from pathlib import Path

import pytest

from batuta.backends.sim.goodput.profiles import ProfileError, load_profiles


def faults_of(folder: Path) -> list[str]:
    with pytest.raises(ProfileError) as caught:
        load_profiles(folder)
    return [str(problem).removeprefix(f"{folder}/toy/") for problem in caught.value.problems]


def test_an_application_knows_its_limits_from_its_files(toy_folder: Path):
    toy = load_profiles(toy_folder)["toy"]
    assert (toy.init_batch, toy.max_batch) == (20, 60)
    assert (toy.min_local, toy.max_local) == (10, 40)
    assert toy.epochs == 3
    assert toy.max_gpus(60) == 6


def test_loaded_arrays_cannot_be_written(toy_folder: Path):
    toy = load_profiles(toy_folder)["toy"]
    with pytest.raises(ValueError, match="read-only"):
        toy.placements.step_s[0] = 1.0


def test_a_changed_file_is_read_again(toy_folder: Path):
    load_profiles(toy_folder)
    path = toy_folder / "toy" / "validation-60.csv"
    path.write_text(path.read_text().replace("260,120", "270,121"))
    assert load_profiles(toy_folder)["toy"].validation.iteration[1, -1] == 121


def test_all_faults_are_named_with_file_and_line(toy_folder: Path):
    app = toy_folder / "toy"
    (app / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n"
        "1,10,0.2,0.1\n"
        "1,10,0.2,0.1\n"
        "1,x,-0.2,nan\n"
        "10,20,0.2,0.3\n"
        "1,40,0.2\n"
        "2,40,0.2,0.3\n"
    )
    (app / "scalability.csv").write_text("num_nodes,local_bsz,step_time\n6,10,1\n")
    (app / "validation-20.csv").write_text(
        "progress,iteration,metric,grad_sqr,grad_var\n9,1,1,0,0\n8,2,1,1,-1\n7,3,,1,1\n6,3,0,1,1\n"
    )
    (app / "validation-60.csv").unlink()
    (app / "validation-big.csv").write_text("")
    assert faults_of(toy_folder) == [
        "validation-big.csv: the name holds no batch size (as in validation-128.csv)",
        "placements.csv:4: local_bsz must be a whole number within 1..2147483647, found 'x'",
        "placements.csv:4: step_time must be a number > 0, found '-0.2'",
        "placements.csv:4: sync_time must be a number ≥ 0, found 'nan'",
        "placements.csv:5: placement must be a row of digits 1–9, one per node, found '10'",
        "placements.csv:6: 3 columns, the header has 4",
        "placements.csv:3: repeats line 2",
        "placements.csv:7: sync_time is longer than step_time",
        "scalability.csv:1: column num_replicas is missing (known: num_nodes, local_bsz, step_time)",
        "scalability.csv:1: column sync_time is missing (did you mean step_time?)",
        "validation-20.csv:3: grad_var must be a number ≥ 0, found '-1'",
        "validation-20.csv:4: metric must be a number that is finite, found ''",
        "validation-20.csv:2: grad_sqr and grad_var are both zero",
        "validation-20.csv:5: progress is less than in the epoch before",
    ]


def test_missing_files_are_named(toy_folder: Path):
    app = toy_folder / "toy"
    for path in app.iterdir():
        path.unlink()
    assert faults_of(toy_folder) == [
        "placements.csv: no such file",
        "scalability.csv: no such file",
        "validation-B.csv: no such file (B: a batch size)",
    ]


def test_faults_of_several_applications_come_together(toy_folder: Path):
    (toy_folder / "other").mkdir()
    (toy_folder / "toy" / "placements.csv").write_bytes(b"\xff\xfe\x00")
    faults = faults_of(toy_folder)
    assert any("other/placements.csv" in fault for fault in faults)
    assert "placements.csv: is a binary file, text was expected" in faults


def test_a_known_application_needs_all_its_epochs(toy_folder: Path):
    (toy_folder / "toy").rename(toy_folder / "ncf")
    with pytest.raises(ProfileError, match=r"validation-20.csv: has 3 epochs, ncf needs 10"):
        load_profiles(toy_folder)


def test_a_folder_that_is_not_there_is_a_fault(tmp_path: Path):
    with pytest.raises(ProfileError, match="No such file"):
        load_profiles(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ProfileError, match="holds no application"):
        load_profiles(tmp_path / "empty")

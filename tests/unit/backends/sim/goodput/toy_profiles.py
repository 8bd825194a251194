"""A made-up application whose times and statistics can be checked by hand."""

from __future__ import annotations

from pathlib import Path

PLACEMENTS = ("1", "2", "3", "4", "11", "12", "22", "44", "1112")
LOCALS = (10, 20, 40)
SPREAD = ((6, 6), (6, 24), (8, 8), (8, 32), (16, 16), (16, 64))


def step_s(nodes: int, gpus: int, local: float) -> float:
    return 0.01 * local + 0.05 * nodes + 0.002 * gpus


def sync_s(nodes: int) -> float:
    return 0.05 * nodes


def write_toy(folder: Path) -> Path:
    """Write the application `toy`: batches 20 and 60, three epochs of 100, 100 and 50 progress."""
    app = folder / "toy"
    app.mkdir(parents=True)
    lines = ["placement,local_bsz,step_time,sync_time"]
    for digits in PLACEMENTS:
        nodes, gpus = len(digits), sum(map(int, digits))
        lines += [f"{digits},{b},{step_s(nodes, gpus, b)},{sync_s(nodes)}" for b in LOCALS]
    (app / "placements.csv").write_text("\n".join(lines) + "\n")
    lines = ["num_nodes,num_replicas,local_bsz,step_time,sync_time"]
    for nodes, gpus in SPREAD:
        lines += [f"{nodes},{gpus},{b},{step_s(nodes, gpus, b)},{sync_s(nodes)}" for b in LOCALS]
    (app / "scalability.csv").write_text("\n".join(lines) + "\n")
    header = "progress,iteration,metric,grad_sqr,grad_var\n"
    # At 20 every step is one unit of progress. At 60 the gain is 2 in the first epoch: (3+1)/(3/3+1).
    (app / "validation-20.csv").write_text(header + "100,100,0.1,1,3\n200,200,0.2,1,3\n250,250,0.3,1,3\n")
    (app / "validation-60.csv").write_text(header + "110,60,0.1,1,3\n205,100,0.2,0,3\n260,120,0.3,1,0\n")
    return folder

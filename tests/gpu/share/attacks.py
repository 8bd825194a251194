"""What a hostile tenant of a card does: for the tests, and for the benchmark that counts what got through."""

import subprocess
import sys
from pathlib import Path

from batuta.gpu.device_plugin.enforcement import container_mounts
from batuta.gpu.share.cards import demand_paths
from tests.gpu.share.containers import Container

FORGE = """
import ctypes, sys, time
from pathlib import Path
from batuta.gpu.share.cards import CARD_LAYOUT, CARD_MAGIC, DEMAND_MAGIC, Card, Demand, Tenant
cards, uuid, own = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
FOREVER = (1 << 63) - 1
def attempt(act):
    try:
        act()
    except OSError as error:
        return error.strerror
    return "done"
tenants = (Tenant * 64)(*(Tenant(7 + 2 * number, 999, 0, 10000, 0) for number in range(63)))
forged = bytes(Card(CARD_MAGIC, CARD_LAYOUT, 63, ctypes.sizeof(Card), uuid.encode(), tenants))
card, other = cards / uuid, next(path for path in cards.glob(f"{uuid}.*") if path != own)
for act in (
    lambda: card.write_bytes(forged),
    lambda: card.open("r+b").truncate(0),
    lambda: card.unlink(),
    lambda: other.open("r+b").truncate(0),
    lambda: other.unlink(),
    lambda: (cards / f"{uuid}.{7:016x}").write_bytes(b"x"),
    lambda: own.unlink(),
    lambda: own.write_bytes(bytes(Demand(DEMAND_MAGIC, CARD_LAYOUT, 2 ** 32 - 1, FOREVER, FOREVER))),
    lambda: own.open("r+b").truncate(0),
):
    print(attempt(act), flush=True)
# It wants the card for as long as a reader believes, and more than all of it.
while True:
    until = time.monotonic_ns() + 30_000_000_000
    own.write_bytes(bytes(Demand(DEMAND_MAGIC, CARD_LAYOUT, 2 ** 32 - 1, until, FOREVER)))
    time.sleep(0.01)
"""
FORBIDDEN, PERMITTED = 7, 2
"""How many of these acts are on files of others, and how many on its own; it prints what came of each."""
SHARED = """
class Prop(ctypes.Structure):
    _fields_ = [(name, c_int) for name in ("type", "handles", "where", "id")] + [("meta", c_void_p), ("rest", c_uint64)]
def create(mib):
    handle, prop = c_uint64(), Prop(1, 1, 1, 0, None, 0)
    return cuda.cuMemCreate(byref(handle), c_size_t(mib * MIB), byref(prop), c_uint64(0)), handle
def export(handle):
    descriptor = c_int()
    ok(cuda.cuMemExportToShareableHandle(byref(descriptor), handle, 1, c_uint64(0)))
    return descriptor.value
def mapped(descriptor, mib):
    handle, address = c_uint64(), c_uint64()
    ok(cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(descriptor), 1))
    ok(cuda.cuMemAddressReserve(byref(address), c_size_t(mib * MIB), c_size_t(0), c_uint64(0), c_uint64(0)))
    return cuda.cuMemMap(address, c_size_t(mib * MIB), c_size_t(0), handle, c_uint64(0)), address, handle
start()
"""
"""Functions to hand memory to other processes, after those of DRIVER."""
HOARDS = {
    "heap": "start(); print(int(cuda.cuCtxSetLimit(2, c_size_t(65 * MIB)) == 0))",
    "buffer": "start(); print(int(cuda.cuCtxSetLimit(1, c_size_t(65 * MIB)) == 0))",
    "stack": "start(); print(int(cuda.cuCtxSetLimit(0, c_size_t(16 << 10)) == 0))",
    "exported": SHARED
    + """
given = 0
for _ in range(3):
    result, handle = create(40)
    if result == 0:
        given += 40
        export(handle)
        ok(cuda.cuMemRelease(handle))
print(int(given > 64))
""",
}
"""Programs that try to have more than 64 MiB, and print 1 if they do."""


def can_confine() -> bool:
    """Return whether processes of this user can have mounts of their own."""
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0


def confined(place: Container, command: list[str]) -> list[str]:
    """The command with the file system that the device plugin gives to the container."""
    mounts = [
        one
        for one in container_mounts(Path("/l"), Path("/p"), place.limits_path, place.limits)
        if one.container_path == one.host_path
    ]
    # A container runtime reaches the files of the node beside those of the container, so they are put aside first.
    aside = place.node.path.parent / "node"
    lines = [f"mkdir -p '{aside}'", f"mount -t tmpfs none '{aside}'"]
    for number, mount in enumerate(mounts):
        make = "mkdir" if Path(mount.host_path).is_dir() else "touch"
        lines += [f"{make} '{aside}/{number}'", f"mount --bind '{mount.host_path}' '{aside}/{number}'"]
    for number, mount in enumerate(mounts):
        lines.append(f"mount --bind '{aside}/{number}' '{mount.container_path}'")
        if mount.read_only:
            lines.append(f"mount -o remount,bind,ro '{mount.container_path}'")
    lines.append(f"umount -l '{aside}'")
    return ["unshare", "--mount", "sh", "-ec", "\n".join((*lines, 'exec "$@"')), "sh", *command]


def forgery(place: Container) -> list[str]:
    """A process of the container that forges and cuts off all files that it finds, and wants more than there is."""
    (own,) = demand_paths(place.limits)
    assert place.limits.cards is not None
    words = [str(place.limits.cards), place.limits.devices[0].uuid, str(own)]
    return confined(place, [sys.executable, "-c", FORGE, *words])


def truncatable(place: Container) -> dict[str, Path]:
    """The files of a container, by what they are, that another process of its user can truncate."""
    (demand,) = demand_paths(place.limits)
    assert place.limits.cards is not None
    card = place.limits.cards / place.limits.devices[0].uuid
    return {"card": card, "demand": demand, "region": place.limits.region}

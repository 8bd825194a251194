"""Rank 0 adds what all ranks send to it, as a distributed training does in each step."""

import socket
import sys
import time

address, port, rank, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
if rank == 0:
    with socket.create_server((address, port)) as server:
        total = 1
        for _ in range(count - 1):
            with server.accept()[0] as worker:
                total += int(worker.recv(16))
    sys.stdout.write(f"sum {total} of {count} workers\n")
else:
    for _ in range(600):
        try:
            with socket.create_connection((address, port)) as head:
                head.sendall(str(rank + 1).encode())
            break
        except ConnectionRefusedError:
            time.sleep(0.1)

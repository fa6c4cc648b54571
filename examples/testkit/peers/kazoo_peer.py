"""A client of the library kazoo, steered by lines: see `ZooKeeperPeer` of the test kit.

kazoo_peer.py HOSTS SESSION_MS NODE_NAME
"""

import random
import re
import socket
import sys
import time

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, LockTimeout
from kazoo.recipe.lock import Lock

hosts, session_ms, node_name = sys.argv[1:]


class PeerLock(Lock):
    """kazoo's lock with another node name: `-lock-` is Curator's."""

    _NODE_NAME = node_name
    _EXCLUDE_NAMES = [node_name]

    def fence(self):
        stat = self.client.retry(self.client.exists, f"{self.path}/{self.node}")
        return stat.czxid << 16


def say(*words):
    print(*words, flush=True)


def turns(client, name, count, hold_ms, witness):
    """Takes the lock COUNT times. Tells the witness when it enters and leaves."""
    host, port = witness.split(":")
    with socket.create_connection((host, int(port))) as stream:
        answers = stream.makefile()

        def tell(words):
            stream.sendall(f"{words}\n".encode())
            if answers.readline() != "ok\n":
                sys.exit("the witness is gone")

        tell(f"kazoo {count}")
        for _ in range(count):
            lock = PeerLock(client, name)
            lock.acquire()
            tell(f"enter {lock.fence()}")
            time.sleep(random.random() * 2 * hold_ms / 1000)
            tell("leave")
            lock.release()
    say("done", count)


def bare_lock(client, name):
    """A lock whose parent exists, so that it costs kazoo the fewest requests."""
    lock = PeerLock(client, name)
    lock.assured_path = True
    return lock


def main():
    client = KazooClient(hosts=hosts, timeout=int(session_ms) / 1000)
    client.add_listener(lambda state: say("state", state))
    client.start(timeout=20)
    locks = {}
    for line in sys.stdin:
        match line.split():
            case ["acquire", name, wait_ms]:
                lock = locks[name] = PeerLock(client, name)
                try:
                    lock.acquire(timeout=None if wait_ms == "-" else int(wait_ms) / 1000)
                    say("held", lock.node, lock.fence())
                except LockTimeout:
                    say("busy")
                except KazooException as error:
                    say("error", type(error).__name__)
            case ["release", name]:
                locks.pop(name).release()
                say("released")
            case ["turns", name, count, hold_ms, witness]:
                turns(client, name, int(count), float(hold_ms), witness)
            case ["lock", name]:
                locks[name] = bare_lock(client, name)
                locks[name].acquire()
                say("held")
            case ["cycles", name, count]:
                since = time.perf_counter()
                for _ in range(int(count)):
                    lock = bare_lock(client, name)
                    lock.acquire()
                    lock.release()
                say("cycles", count, time.perf_counter() - since)
            case other:
                sys.exit(f"unknown: {other}")
    client.stop()


main()

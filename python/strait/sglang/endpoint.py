"""A rank's connection to the daemon of its node: its pool, its transfers, and the thread that follows them."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from .. import service
from ..codebook import ClassLike
from ..errors import Error
from ..service import Event, EventType, Mismatch, Pages, Region, State, Transfer

logger = logging.getLogger(__name__)

LEASE = 30.0  # seconds that pages stay offered while no decode rank lives that takes them
DRAIN_WAIT = 5.0  # seconds after which pages that are still in use are a fault
_CONNECT_WAIT = 30.0  # seconds that a rank waits for its daemon at its start
_RECONNECT_WAIT = 0.1  # seconds that a request waits for a daemon that is being restarted, once a second
_TICK = 0.1  # seconds between two looks at a connection that says nothing
_QUIET = 10.0  # seconds between two lines about the daemon
_PEERS = 256  # descriptions of other ranks that are kept


class Link:
    """One request's transfer. What it says changes under the endpoint's lock.

    told: called with the link and the event for each state, in the endpoint's thread, under its lock.
    """

    def __init__(self, room: int, told: Callable[[Link, Event], None]):
        self.room, self.told = room, told
        self.transfer: Transfer | None = None  # while it lives
        self.drained = False  # nothing touches its pages any more
        self.done_at = 0.0  # perf_counter() of the verdict DONE


class Endpoint:
    """Any thread may call it. It ends with close().

    RuntimeError, with the reason, if the daemon does not take the pool: the engine cannot start like this.
    """

    def __init__(self, regions: Mapping[ClassLike, Any], compat: str):
        self.lock = threading.RLock()
        self._changed = threading.Condition(self.lock)
        self._links: dict[Transfer, Link] = {}
        self._peers: dict[bytes, service.Peer] = {}
        self._told = self._waited = 0.0
        self._closing = False
        self._client = service.Client()
        pools: dict[ClassLike, Region] = {**regions}
        try:
            self._pool = self._client.register(pools, compat=compat)
            self.blob = self._pool.export(timeout=_CONNECT_WAIT)
        except (Error, ValueError) as failure:
            self._client.close()
            raise RuntimeError(f"strait: the KV cache could not be registered: {failure}") from failure
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="strait", daemon=True)
        self._thread.start()

    # ---- Transfers

    def why_not(self, blob: bytes) -> str:
        """Why pages cannot be exchanged with that pool, with the figures of both sides; "": they can."""
        with self.lock:
            try:
                peer = self._peer_of(blob)
            except Error as failure:
                return f"the other rank's description of its pool cannot be read: {failure}"
            return self._pool.explain(peer) if self._pool.mismatch(peer) & Mismatch.FATAL else ""

    def offer(self, link: Link, key: str, blob: bytes, consumers: int) -> None:
        """Source: an offer without pages yet, to an expectation of that key in that pool; a link that has one already
        offers it there, too. Error, ValueError: there is none, or it has failed."""
        with self.lock:
            if link.transfer is None:
                self._require_daemon()
                self._adopt(link, self._pool.offer(key, lease=LEASE, consumers=consumers))
            transfer = link.transfer
            assert transfer is not None
            try:
                transfer.start(self._peer_of(blob), key)
            except Error:
                transfer.abort()
                raise

    def append(self, link: Link, pages: list[Pages], last: bool, aux: bytes, ready: Any) -> None:
        """Source: more pages. An offer that has failed meanwhile says so in an event."""
        with self.lock:
            if link.transfer is not None:
                link.transfer.append(pages, last=last, aux=aux, ready=ready)

    def expect(self, link: Link, key: str, pages: list[Pages], deadline: float, sources: int) -> None:
        """Sink. Error, ValueError: the link has no transfer then."""
        with self.lock:
            self._require_daemon()
            self._adopt(link, self._pool.expect(key, pages, deadline=deadline, sources=sources))

    def is_drained(self, link: Link | None) -> bool:
        """Nothing touches its pages any more, and all that it tells has been told."""
        with self.lock:
            return link is None or link.drained

    def abort(self, link: Link) -> None:
        with self.lock:
            if link.transfer is not None:
                link.transfer.abort()

    def fence(self, link: Link) -> None:
        """Ends the transfer; nothing touches its pages any more when this returns. RuntimeError: something still does,
        so that they must not be used again."""
        with self.lock:
            self.abort(link)
            if not self._changed.wait_for(lambda: link.drained, DRAIN_WAIT):
                raise RuntimeError(f"strait: pages of room {link.room} are still in use; the daemon hangs")

    def close(self) -> None:
        """Ends all transfers, and waits until nothing touches the pool any more, or the daemon is gone."""
        with self.lock:
            for link in self._links.values():
                self.abort(link)
            self._changed.wait_for(lambda: not self._links, DRAIN_WAIT)
            self._closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        os.close(self._wake)
        self._client.close()

    # ---- Under the lock

    def _adopt(self, link: Link, transfer: Transfer) -> None:
        link.transfer = transfer
        self._links[transfer] = link

    def _peer_of(self, blob: bytes) -> service.Peer:
        peer = self._peers.pop(blob, None) or self._client.import_peer(blob)
        self._peers[blob] = peer  # the last one used is the last one forgotten
        if len(self._peers) > _PEERS:
            self._peers.pop(next(iter(self._peers))).remove()
        return peer

    def _require_daemon(self) -> None:
        """ValueError: it is away, so that what is asked of it would wait for its return."""
        now = time.monotonic()
        if not self._client.connected and now - self._waited > 1:
            while not self._client.connected and time.monotonic() - now < _RECONNECT_WAIT:
                self._take(self._client.wait(0.01))
            self._waited = time.monotonic()
        if not self._client.connected:
            raise ValueError("the daemon of this node is away")

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if event.type == EventType.CONNECTION and not event.connected:
                self._complain(event.text or "the connection ended")
            link = self._links.get(event.transfer) if event.transfer is not None else None
            if link is not None and event.type in (EventType.STATE, EventType.DRAINED):
                self._follow(link, event)
        if events:
            self._changed.notify_all()

    def _follow(self, link: Link, event: Event) -> None:
        ended = event.type == EventType.STATE and event.state in (State.DONE, State.FAILED)
        link.drained = event.type == EventType.DRAINED or (ended and (event.drained or event.state == State.DONE))
        if event.state == State.DONE:
            link.done_at = time.perf_counter()
        transfer = link.transfer
        if link.drained and transfer is not None:
            link.transfer = None
            del self._links[transfer]
        if event.type == EventType.STATE:
            try:
                link.told(link, event)
            except Exception:  # one request's, which must not stop all others
                logger.exception("strait: room %d: its state could not be told", link.room)
        if link.drained and transfer is not None:
            transfer.release()

    def _complain(self, text: str) -> None:
        now = time.monotonic()
        level = logging.WARNING if now - self._told >= _QUIET else logging.DEBUG
        self._told = now if level == logging.WARNING else self._told
        logger.log(level, "strait: the daemon is away: %s", text)

    def _run(self) -> None:
        while True:
            select.select([self._client.fileno(), self._wake], [], [], _TICK)
            with self.lock:
                if self._closing:
                    return
                self._take(self._client.poll())

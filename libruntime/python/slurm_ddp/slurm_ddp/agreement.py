# SPDX-License-Identifier: Apache-2.0
"""Lets all ranks stop at the same call, whichever rank has heard that they should.

Rank 0 listens, and the others connect to it; each side proves that it knows the step's key, and each message carries a
code made with it. Nothing is exchanged until a rank wants to stop. Then rank 0 asks all ranks how often they have called
so far, and tells all to stop at one call more than the highest of these numbers. A rank that was asked waits in its next
call for the answer, so none can pass that number. Threads ask and answer, so the answer waits for no rank's program.

The other ranks may also ask rank 0 for numbers that it offers.
"""
import hashlib
import hmac
import os
import select
import socket
import struct
import threading
import time

_PORT_LOW, _PORTS, _TRIES = 21000, 8000, 8
_NONCE, _CODE = 16, 16
_FRAME = struct.Struct("!BQQ")
HEARD, COUNT, BYE, ASK, STOP, LOST, DONE, LEAVE, WISH, SAID = range(1, 11)
_HANDSHAKE_SECONDS = 10.0
_CONNECT_SECONDS = 600.0
_LOOK_SECONDS = 1.0
UNREADABLE = 1  # what rank 0 answers if an offer's function fails


def _code(key, *parts):
    return hmac.new(key, b"|".join(parts), hashlib.sha256).digest()


def ports(key):
    """The ports at which rank 0 may listen; it takes the first free one. Other programs at such ports lack the key."""
    first = int.from_bytes(_code(key, b"slurm_ddp stop port")[:4], "big")
    return [_PORT_LOW + (first + 977 * number) % _PORTS for number in range(_TRIES)]


def _make_room(ranks):
    """The usual limit of 1024 descriptors is too low for rank 0 of a large world."""
    import resource
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = soft + ranks if ranks > soft // 4 else soft
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if wanted > soft != resource.RLIM_INFINITY:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (ValueError, OSError):
            pass


def _receive(connection, count):
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


class Link:
    """A connection on which both sides have proved the key."""

    def __init__(self, connection, key, rank):
        self.connection, self.key, self.rank = connection, key, rank
        self.sent = self.received = 0
        self.buffer = b""
        self.count, self.done = None, False
        self.lock = threading.Lock()

    def _mac(self, way, number, body):
        return _code(self.key, way, struct.pack("!Q", number), body)[:_CODE]

    def send(self, kind, value=0, way=b"up", name=0):
        body = _FRAME.pack(kind, value, name)
        with self.lock:
            self.connection.sendall(body + self._mac(way, self.sent, body))
            self.sent += 1

    def read(self, way=b"up"):
        """Returns the messages that have come. ConnectionError: the other side is gone, or has sent something wrong."""
        data = self.connection.recv(4096)
        if not data:
            raise ConnectionError("closed")
        self.buffer += data
        found, size = [], _FRAME.size + _CODE
        while len(self.buffer) >= size:
            body, code = self.buffer[:_FRAME.size], self.buffer[_FRAME.size:size]
            if not hmac.compare_digest(code, self._mac(way, self.received, body)):
                raise ConnectionError("a message is not of this step")
            self.received += 1
            self.buffer = self.buffer[size:]
            found.append(_FRAME.unpack(body))
        return found

    def close(self):
        self.connection.close()


def accept(connection, key, world_size):
    """Rank 0's side of the handshake: returns a Link, or raises ConnectionError."""
    connection.settimeout(_HANDSHAKE_SECONDS)
    mine = os.urandom(_NONCE)
    connection.sendall(mine)
    said = _receive(connection, 4 + _NONCE + _CODE)
    number, theirs, code = said[:4], said[4:4 + _NONCE], said[4 + _NONCE:]
    if not hmac.compare_digest(code, _code(key, b"rank", mine, theirs, number)[:_CODE]):
        raise ConnectionError("it does not know the step's key")
    rank = struct.unpack("!I", number)[0]
    if not 0 < rank < world_size:
        raise ConnectionError("there is no rank %d" % rank)
    connection.sendall(_code(key, b"rank 0", theirs, mine, number)[:_CODE])
    connection.settimeout(_HANDSHAKE_SECONDS)
    return Link(connection, _code(key, b"link", mine, theirs, number), rank)


def introduce(connection, key, rank):
    """The other ranks' side of the handshake."""
    connection.settimeout(_HANDSHAKE_SECONDS)
    try:
        theirs = _receive(connection, _NONCE)
        mine, number = os.urandom(_NONCE), struct.pack("!I", rank)
        connection.sendall(number + mine + _code(key, b"rank", theirs, mine, number)[:_CODE])
        if not hmac.compare_digest(_receive(connection, _CODE), _code(key, b"rank 0", mine, theirs, number)[:_CODE]):
            raise ConnectionError("port %d is not this step's" % connection.getpeername()[1])
        return Link(connection, _code(key, b"link", theirs, mine, number), rank)
    except BaseException:
        connection.close()
        raise


def connect(address, port, key, rank):
    """The same, at an address. OSError, ValueError: there is nobody of this step."""
    return introduce(socket.create_connection((address, port), timeout=_HANDSHAKE_SECONDS), key, rank)


class Agreement:
    """Each process has one. The program calls `call()`; everything else runs on a thread. The next one
    takes over the pipe of the one `before`, to which Python writes signals."""

    def __init__(self, rank, world_size, address, key, before=None):
        self.rank, self.world_size, self.address, self.key = rank, world_size, address, key
        self.also_heard = self.on_lost = self.on_signals = None
        self.pid = os.getpid()
        self.condition = threading.Condition()
        self.calls, self.stop_at, self.asked = 0, None, False
        self.heard = self.lost = self.ended = False
        self.done = self.leave = False  # this rank has come to its end; all have
        self.missing = None           # a sentence about ranks that have not come
        self.a_rank_is_lost = False
        self.offers, self.pending = {}, []  # functions by name; on rank 0 (link, name) that are not answered yet
        self.wishes, self.said = [], {}     # other ranks: names to ask for; rank 0's numbers by name
        self.asking = threading.Lock()
        self.wake_read, self.wake_write = (before.wake_read, before.wake_write) if before is not None else os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        self.links, self.gone = {}, set()
        self.thread = threading.Thread(target=self._run, name="slurm_ddp stop", daemon=True)
        self.thread.start()

    # ---- the program's side ----

    def attend(self, also_heard, on_lost, on_signals):
        """Has the thread call these functions: the first once a second on rank 0, the second once a rank has gone without a
        word, the third with what was written to wake_write."""
        self.also_heard, self.on_lost, self.on_signals = also_heard, on_lost, on_signals
        if self.a_rank_is_lost:
            on_lost()

    def call(self):
        """Whether all ranks stop at this call."""
        with self.condition:
            self.calls += 1
            while self.stop_at is None and self.asked and not self.lost and not self.ended:
                self.condition.wait(1.0)
            return self.stop_at is not None and self.calls >= self.stop_at

    def meet(self, seconds):
        """Waits until all ranks have come here, or one is gone. False: they have not."""
        self.done = True
        self.wake()
        deadline = time.monotonic() + seconds
        with self.condition:
            while not self.leave and not self.lost and time.monotonic() < deadline:
                self.condition.wait(1.0)
            return self.leave

    def offer(self, name, function):
        """From now on, while this rank is rank 0, the thread answers asks for this name by the function's number."""
        self.offers[name] = function
        self.wake()

    def take_offers(self, other):
        self.offers.update(other.offers)
        self.wake()

    def ask(self, name, seconds):
        """On other ranks: the number that rank 0 offers, at this moment. None: rank 0 is gone, or this is a forked child,
        which has no thread. OSError: it did not answer."""
        if os.getpid() != self.pid:
            return None
        deadline = time.monotonic() + seconds
        with self.asking, self.condition:
            self.said.pop(name, None)
            self.wishes.append(name)
            self.wake()
            while name not in self.said and not self.lost and time.monotonic() < deadline:
                self.condition.wait(1.0)
            if name not in self.said and not (self.lost and self.links):
                raise OSError(self.missing or "rank 0 did not answer within %g s" % seconds)
            return self.said.pop(name, None)

    def hear(self):
        """Notes that this rank has heard that all should stop. A signal handler may call it: it takes no lock."""
        self.heard = True
        self.wake()

    def wake(self):
        try:
            os.write(self.wake_write, b"\0")
        except OSError:  # full: the thread is awake
            pass

    def end(self):
        """Tells the others that this rank leaves on purpose."""
        with self.condition:
            self.ended = True
            self.condition.notify_all()
        self.wake()
        self.thread.join(2.0)

    # ---- the thread ----

    def _run(self):
        try:
            if self.rank == 0:
                self._serve()
            else:
                self._follow()
        except (OSError, ValueError) as error:
            if not self.links:
                self.missing = self.missing or str(error)
        finally:
            self._lose()
            for link in list(self.links.values()):
                link.close()

    def _lose(self):
        with self.condition:
            self.lost = True
            self.condition.notify_all()

    def _wait(self, sources, seconds=_LOOK_SECONDS):
        """Of the sockets those that have something to say, after so many seconds at most."""
        poll, by_number = select.poll(), {source.fileno(): source for source in sources}
        for number in [self.wake_read] + list(by_number):
            if number >= 0:
                poll.register(number, select.POLLIN)
        ready = [number for number, _ in poll.poll(seconds * 1000)]
        if self.wake_read in ready:
            try:
                said = os.read(self.wake_read, 4096)
            except OSError:
                said = b""
            if self.on_signals is not None:
                self.on_signals(said)
        return [by_number[number] for number in ready if number in by_number]

    def _answer(self):
        with self.condition:
            self.asked = True
            return self.calls

    def _decide(self, number):
        with self.condition:
            self.stop_at = number
            self.condition.notify_all()

    # ---- rank 0 ----

    def _listen(self):
        error = None
        for port in ports(self.key):
            for family, anywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
                try:
                    listener = socket.socket(family, socket.SOCK_STREAM)
                except OSError:
                    continue
                try:
                    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                    listener.bind((anywhere, port))
                    listener.listen(1024)
                    return listener
                except OSError as why:
                    error = why
                    listener.close()
        raise OSError("rank 0 cannot listen for the other ranks: %s" % error)

    def _admit(self, listener):
        connection, _ = listener.accept()
        # A connection that says nothing must not keep others waiting.
        try:
            threading.Thread(target=self._shake, args=(connection,), daemon=True).start()
        except RuntimeError:  # no thread can be started, so others wait for this handshake
            self._shake(connection)

    def _shake(self, connection):
        try:
            link = accept(connection, self.key, self.world_size)
        except (OSError, ValueError):
            connection.close()
            return
        with self.condition:
            if link.rank in self.links or link.rank in self.gone:
                connection.close()
                return
            self.links[link.rank] = link
        self.wake()

    def _serve(self):
        _make_room(self.world_size)
        listener, asked = self._listen(), False
        try:
            while True:
                with self.condition:
                    links = dict(self.links)
                for source in self._wait([listener] + [link.connection for link in links.values()]):
                    if source is listener:
                        self._admit(listener)
                        continue
                    self._read(next(link for link in links.values() if link.connection is source))
                if self.ended:
                    self._tell(BYE)
                    return
                if not self.heard and self.also_heard is not None and self.also_heard():
                    self.heard = True
                asked = self._drive(asked)
                self._let_leave()
                self._answer_wishes()
        finally:
            listener.close()

    def _read(self, link):
        try:
            for kind, value, name in link.read():
                if kind == WISH:
                    self.pending.append((link, name))
                elif kind == HEARD:
                    self.heard = True
                elif kind == COUNT:
                    link.count = value
                elif kind == DONE:
                    link.done = True
                elif kind == BYE:
                    self._drop(link, False)
                    return
        except (OSError, ValueError):
            self._drop(link, True)

    def _drop(self, link, lost):
        with self.condition:
            self.links.pop(link.rank, None)
            self.gone.add(link.rank)
        link.close()
        if lost:
            self._tell(LOST, link.rank)
            self._told_lost()

    def _answer_wishes(self):
        pending, self.pending = self.pending, []
        for link, name in pending:
            if name not in self.offers:
                self.pending.append((link, name))
                continue
            try:
                number = self.offers[name]()
            except Exception:  # it must not end this thread
                number = UNREADABLE
            try:
                link.send(SAID, number, b"down", name)
            except OSError:  # the link is read later, and then found to be gone
                pass

    def _told_lost(self):
        self.a_rank_is_lost = True
        if self.on_lost is not None:
            self.on_lost()

    def _tell(self, kind, value=0):
        for link in list(self.links.values()):
            try:
                link.send(kind, value, b"down")
            except OSError:
                pass

    def _drive(self, asked):
        """Rank 0 asks once a rank wants to stop and all have come, and decides once all have answered."""
        if not self.heard or self.stop_at is not None:
            return asked
        with self.condition:
            present = len(self.links) + len(self.gone) + 1
        if present < self.world_size:
            self.missing = "%d of %d ranks have not called should_stop() yet" % (self.world_size - present, self.world_size)
            return asked
        if not asked:
            self._answer()
            self._tell(ASK)
        if all(link.count is not None for link in list(self.links.values())):
            with self.condition:
                number = max([self.calls] + [link.count for link in self.links.values()]) + 1
            # The others are told first, because this rank's own program may end by it.
            self._tell(STOP, number)
            self._decide(number)
        return True

    def _let_leave(self):
        with self.condition:
            come = self.done and len(self.links) + len(self.gone) + 1 >= self.world_size
            if not come or self.leave or not all(link.done for link in self.links.values()):
                return
        self._tell(LEAVE)
        with self.condition:
            self.leave = True
            self.condition.notify_all()

    # ---- the other ranks ----

    def _find(self):
        deadline, pause = time.monotonic() + _CONNECT_SECONDS, 0.05
        while not self.ended:
            for port in ports(self.key):
                try:
                    return connect(self.address, port, self.key, self.rank)
                except (OSError, ValueError) as error:
                    why = error
            if time.monotonic() > deadline:
                raise OSError("rank %d cannot reach rank 0 on %s: %s" % (self.rank, self.address, why))
            self.missing = "rank %d has not reached rank 0 on %s yet" % (self.rank, self.address)
            self._wait([], pause)
            pause = min(pause * 2, 2.0)
        return None

    def _follow(self):
        link, told, done = self._find(), False, False
        if link is None:
            return
        self.links[0], self.missing = link, None
        while True:
            for _ in self._wait([link.connection]):
                for kind, value, name in link.read(b"down"):
                    if kind == ASK:
                        link.send(COUNT, self._answer())
                    elif kind == SAID:
                        with self.condition:
                            self.said[name] = value
                            self.condition.notify_all()
                    elif kind == STOP:
                        self._decide(value)
                    elif kind == LOST:
                        self._told_lost()
                    elif kind == LEAVE:
                        with self.condition:
                            self.leave = True
                            self.condition.notify_all()
                    elif kind == BYE:
                        return
            if self.ended:
                link.send(BYE)
                return
            if self.heard and not told:
                told = True
                link.send(HEARD)
            with self.condition:
                wishes, self.wishes = self.wishes, []
            for name in wishes:
                link.send(WISH, name=name)
            if self.done and not done:
                done = True
                link.send(DONE)

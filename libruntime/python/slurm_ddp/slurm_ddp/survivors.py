# SPDX-License-Identifier: Apache-2.0
"""Lets the ranks that are left after a failure agree on how they go on.

The lowest rank that is left is the leader. Each other rank has a connection with it, on which both have proved the step's
key. Nothing is sent until a rank is lost. The end of a process ends its connection. The kernel of a node without power
or network no longer answers the probes of the other side's kernel, so a program that is busy or stopped is not lost.

After a failure each rank reports its last step to the leader. When all that are left have reported, the leader tells
them who they are, which step is whole, and where the next process group meets. If the leader is lost, the next one
collects the reports again.

If srun starts others in place of lost ranks, the ranks that are left only hear of a loss here, and meet elsewhere.
"""
import errno
import os
import select
import socket
import threading
import time
import weakref
from typing import NamedTuple

from . import jobs
from .agreement import BYE, LOST, accept, introduce

REPORT, MEMBER, ROOT, GO, END, OUT, AGAIN = range(32, 39)
_WHOLE, _FINISHED = 1, 2
_LOOK_SECONDS = 0.1
_MEET_SECONDS = 600.0
_SILENCE_SECONDS = 5  # the default of silence=
NOBODY = (1 << 64) - 1
_OWN_ERRORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


class Report(NamedTuple):
    """What a rank says of itself: the last step that it has ended, whether the next one has changed nothing yet, and
    whether it has ended all steps."""
    step: int
    whole: bool
    finished: bool


class Plan(NamedTuple):
    """How the ranks go on. All numbers of ranks are those at the start. `root` has the state after `step`; None: nobody has.
    `behind` are the ranks that need it. `members` is empty if all ranks have finished."""
    members: tuple
    behind: tuple
    root: int
    step: int
    address: str
    port: int


FINISHED = Plan((), (), None, 0, "", 0)


def settle(reports, address="", port=0):
    """The plan of ranks with these reports, by rank."""
    step = max(report.step for report in reports.values())
    having = [rank for rank in sorted(reports) if reports[rank].whole and reports[rank].step == step]
    behind = tuple(rank for rank in sorted(reports) if rank not in having)
    return Plan(tuple(sorted(reports)), behind, having[0] if having else None, step, address, port)


_all = weakref.WeakSet()


def _forget():
    """Runs in a forked child: a connection lives as long as any process has it."""
    for each in list(_all):
        for connection in each.connections():
            connection.close()


os.register_at_fork(after_in_child=_forget)


class Survivors:
    """Each process has one. The program calls agree(); everything else runs on a thread.

    `gather(value)` returns the values of all ranks. `host()` opens a store, and returns its port; the leader's thread calls it.
    `on_broken()` is called again and again while a rank is lost and the program has not come to agree() yet. `shrinks`: those
    that are left go on as fewer ranks, and agree on that here.
    """

    def __init__(self, rank, size, gather, host, on_broken, shrinks=True):
        self.rank, self.size, self.host, self.on_broken, self.shrinks = rank, size, host, on_broken, shrinks
        text = os.environ.get("DDP_SILENCE", "")
        self.silence = int(text) if text.isdigit() else _SILENCE_SECONDS
        self.condition = threading.Condition()
        self.members, self.gone = set(range(size)), {}
        self.broken = self.leaving = self.closed = False
        self.on_purpose = True
        self.report = self.plan = self.error = None
        self.links, self.waiting, self.reports = {}, {}, {}
        self.told, self.said, self.lost = None, [], []
        self.plans, self.asks = 0, False  # the last plan's number; the program has asked for the next one
        self.opening, self.own = threading.Lock(), set()  # numbers of all connections that there have been
        self.wake_read, self.wake_write = os.pipe()
        os.set_blocking(self.wake_read, False)
        os.set_blocking(self.wake_write, False)
        dual = socket.has_dualstack_ipv6()
        self.listener = socket.create_server(("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, backlog=1024,
                                             dualstack_ipv6=dual)
        _all.add(self)
        self._meet(gather)
        self.thread = threading.Thread(target=self._run, name="slurm_ddp survive", daemon=True)
        self.thread.start()

    # ---- the program's side ----

    def agree(self, report):
        """Waits until all ranks that are left have reported, and returns their plan. None: a rank is lost, and they do not
        shrink."""
        with self.condition:
            self.report, self.plan, self.told = report, None, None
            self._wake()
            while self.plan is None and self.error is None and not self._waits_for_others():
                self.condition.wait()
            self.report = None
            if self.plan is None and self.error is None:
                return None
            if self.plan is None:
                raise RuntimeError(self.error)
            return self.plan

    def _waits_for_others(self):
        """Whether those that are left do nothing more here."""
        return self.broken and not self.shrinks

    def wait_for_loss(self):
        """Whether a member is lost. An error may be seen some time before the reason for it."""
        end = time.monotonic() + self.silence + 2
        with self.condition:
            while not self.broken and self.error is None and time.monotonic() < end:
                self.condition.wait(end - time.monotonic())
            return self.broken

    def ask_again(self):
        """Has all ranks agree once more, as what they have agreed on has failed on this one. Perhaps nobody is lost."""
        with self.condition:
            self.asks, self.broken = not self.broken, True
        self._wake()

    def is_own(self, connection):
        """Whether the connection belongs to this object, also by another descriptor."""
        with self.opening:
            return os.fstat(connection.fileno()).st_ino in self.own

    def close(self, on_purpose=True, seconds=2.0):
        """Ends the thread. False: it has not ended within `seconds`, and may still call on_broken()."""
        with self.condition:
            self.closed, self.on_purpose = True, on_purpose
            self.condition.notify_all()
        self._wake()
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def connections(self):
        return [self.listener] + [link.connection for links in (self.links, self.waiting) for link in links.values()]

    # ---- the start ----

    def _meet(self, gather):
        """Rank 0 sees from where the others come, and tells all."""
        said = gather((self.listener.getsockname()[1], jobs.job().node_name, os.urandom(32)))
        self.ports, self.nodes = [each[0] for each in said], [each[1] for each in said]
        self.key = b"survive " + (os.environ.get("DDP_KEY", "").encode() or said[0][2])
        master = os.environ.get("MASTER_ADDR") or socket.gethostname()
        self.addresses = [master] * self.size
        if self.rank == 0:
            self.listener.settimeout(_MEET_SECONDS)
            while len(self.waiting) < self.size - 1:
                self._shake(self._open(self._accept))
            self._adopt()
            for rank, link in self.links.items():
                host = link.connection.getpeername()[0].replace("::ffff:", "")
                self.addresses[rank] = master if host.startswith("127.") or host == "::1" else host
        else:
            self.links[0] = self._connect(0)
        self.addresses = gather(self.addresses if self.rank == 0 else None)[0]

    def _open(self, function, *arguments):
        """is_own() must know a connection as soon as there is one."""
        with self.opening:
            connection = function(*arguments)
            self.own.add(os.fstat(connection.fileno()).st_ino)
            return connection

    def _accept(self):
        return self.listener.accept()[0]

    def _keep(self, connection):
        """Has the kernel ask whether the other node is there."""
        if self.silence > 0:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in ((socket.TCP_KEEPIDLE, 1), (socket.TCP_KEEPINTVL, 1), (socket.TCP_KEEPCNT, self.silence),
                                  (socket.TCP_USER_TIMEOUT, self.silence * 1000 - 500)):
                connection.setsockopt(socket.IPPROTO_TCP, option, value)

    def _connect(self, rank):
        """OSError: the rank is lost. A rank that is stopped is waited for until this one closes: RuntimeError."""
        while True:
            connection = self._open(socket.create_connection, (self.addresses[rank], self.ports[rank]), self.silence or None)
            self._keep(connection)
            try:
                return introduce(connection, self.key, self.rank)
            except socket.timeout:
                connection.close()
            if self.closed:
                raise RuntimeError("rank %d on %s leaves" % (self.rank, self.nodes[self.rank]))

    def _shake(self, connection):
        try:
            self._keep(connection)
            link = accept(connection, self.key, self.size)
        except (OSError, ValueError):
            connection.close()
            return
        with self.condition:
            self.waiting[link.rank] = link
        self._wake()

    # ---- the thread ----

    def _run(self):
        try:
            while not self.closed:
                if self._waits_for_others():
                    self._await_program()
                    break
                self._follow()
                self._tell_others()
                self._tell_report()
                for number in self._ready():
                    self._take_from(number)
                if self.broken and self.report is None:
                    self.on_broken()
            for link in self.links.values() if self.on_purpose else ():
                self._send(link, BYE)
        except Exception as error:  # the program is to hear of it
            with self.condition:
                self.error = str(error)
                self.condition.notify_all()
        for connection in self.connections():
            connection.close()
        with self.condition:
            os.close(self.wake_read)
            os.close(self.wake_write)
            self.wake_read = self.wake_write = -1

    def _await_program(self):
        """Connections stay until then. So the others hear from the leader who is lost."""
        while not self.closed:
            self.on_broken()
            with self.condition:
                if not self.closed:
                    self.condition.wait(_LOOK_SECONDS)

    def _wake(self):
        with self.condition:
            try:
                os.write(self.wake_write, b"\0")
            except OSError:  # the pipe is full, so the thread is awake; or the thread has closed it
                pass

    def _ready(self):
        poll = select.poll()
        for source in [self.wake_read, self.listener] + [link.connection for link in self.links.values()]:
            poll.register(source, select.POLLIN)
        looks = self.broken or (self._leads() and self._absent())
        ready = [number for number, _ in poll.poll(_LOOK_SECONDS * 1000 if looks else None)]
        if self.wake_read in ready:
            try:
                os.read(self.wake_read, 4096)
            except OSError:
                pass
        return ready

    def _take_from(self, number):
        if number == self.listener.fileno():
            # A connection that says nothing must not keep others waiting.
            threading.Thread(target=self._shake, args=(self._open(self._accept),), daemon=True).start()
            return
        for rank, link in list(self.links.items()):
            if link.connection.fileno() != number:
                continue
            try:
                for message in link.read(b"up" if self._leads() else b"down"):
                    self._take(rank, *message)
            except (OSError, ValueError) as error:
                self._lose(rank, error)

    def _leader(self):
        return min(rank for rank in range(self.size) if rank not in self.gone)

    def _leads(self):
        return self._leader() == self.rank

    def _absent(self):
        return [rank for rank in range(self.size) if rank not in self.gone and rank not in self.links and
                rank != self.rank]

    def _follow(self):
        """Has a connection with the leader, or with all others."""
        self._turn_away()
        while not self._leads():
            leader = self._leader()
            if leader in self.links:
                return
            try:
                self.links, self.told, self.said = {leader: self._connect(leader)}, None, []
            except (OSError, ValueError) as error:
                self._lose(leader, error)
        self._turn_away()  # what _lose() has found above
        self._adopt()
        for rank in self._absent() if self.gone else ():
            if rank in self.gone:  # its node was found to be gone a moment ago
                continue
            # It comes by itself if it lives.
            try:
                socket.create_connection((self.addresses[rank], self.ports[rank]), timeout=self.silence or None).close()
            except OSError as error:
                self._lose(rank, error)

    def _turn_away(self):
        """A rank that counts as lost may live, and take this one for the leader."""
        with self.condition:
            lost = [self.waiting.pop(rank) for rank in self.gone if rank in self.waiting]
        for link in lost:
            try:
                link.send(OUT, 0, b"down")
            except OSError:
                pass
            link.close()

    def _adopt(self):
        with self.condition:
            waiting, self.waiting = self.waiting, {}
            self.links.update(waiting)

    def _send(self, link, kind, value=0, name=0):
        try:
            link.send(kind, value, b"down" if self._leads() else b"up", name)
        except OSError:  # it is seen when the link is read
            pass

    def _lose(self, rank, error):
        """A connection that is not closed by its other end belongs to a node that is gone with all of its ranks.
        RuntimeError: this rank cannot even try."""
        if isinstance(error, socket.gaierror) or getattr(error, "errno", None) in _OWN_ERRORS:
            raise RuntimeError("rank %d on %s cannot connect to rank %d on %s: %s" % (
                self.rank, self.nodes[self.rank], rank, self.nodes[rank], error))
        silent = not isinstance(error, (ConnectionError, ValueError))
        node = self.nodes[rank] if silent and self.nodes[rank] != self.nodes[self.rank] else None
        self._note([other for other in range(self.size) if other == rank or self.nodes[other] == node], silent)

    def _note(self, ranks, silent=False):
        with self.condition:
            leads = self._leads()
            new = [rank for rank in ranks if rank not in self.gone]
            for rank in new:
                self.gone[rank] = "is silent" if silent else "has ended"
                self.reports.pop(rank, None)
                link = self.links.pop(rank, None)
                if link is not None:
                    link.close()
            # When ranks leave on purpose, they do so one after the other.
            self.broken |= not self.leaving and any(rank in self.members for rank in new)
            self.condition.notify_all()
        for rank in new if leads and not self.leaving else ():
            for link in list(self.links.values()):
                self._send(link, LOST, rank, silent)

    def _tell_others(self):
        with self.condition:
            asks, self.asks = self.asks, False
        for link in list(self.links.values()) if asks else ():
            self._send(link, AGAIN, self.plans)

    def _tell_report(self):
        with self.condition:
            report = self.report if self.plan is None else None
        if report is None:
            return
        if self._leads():
            self.reports[self.rank] = report
            self._decide()
        elif self.told is not self.links[self._leader()]:
            self.told = self.links[self._leader()]
            self._send(self.told, REPORT, report.step, _WHOLE * report.whole + _FINISHED * report.finished)

    def _take(self, rank, kind, value, name):
        if kind == REPORT:
            self.reports[rank] = Report(value, bool(name & _WHOLE), bool(name & _FINISHED))
        elif kind == AGAIN and value == self.plans:
            with self.condition:
                self.asks, self.broken = self._leads() and not self.broken, True
                self.condition.notify_all()
        elif kind == BYE:
            self.leaving = True
            self._note([rank])
        elif kind == LOST and value != self.rank:
            self._note([value], bool(name))
        elif kind in (LOST, OUT):
            raise RuntimeError("rank %d on %s counts as lost, and the others go on without it" %
                               (self.rank, self.nodes[self.rank]))
        elif kind in (MEMBER, ROOT):
            self.said.append((value, name))
        elif kind == GO:
            (root, step), members = self.said[-1], self.said[:-1]
            self.said = []
            self._set(Plan(tuple(each for each, _ in members), tuple(each for each, behind in members if behind),
                           None if root == NOBODY else root, step, self.addresses[rank], value), name)
        elif kind == END:
            self._set(FINISHED, self.plans)

    def _set(self, plan, number):
        with self.condition:
            self.plan, self.closed = plan, self.closed or not plan.members
            self.plans = number
            if plan.members:
                self._settle_members(set(plan.members))
            self.condition.notify_all()

    def _settle_members(self, left):
        lost = sorted(self.members - left)
        for rank in lost:  # the leader may have lost it before this rank came
            self.gone.setdefault(rank, "has ended")
        self.lost = ["rank %d on %s %s" % (rank, self.nodes[rank], self.gone[rank]) for rank in lost]
        self.members = left
        self.broken = any(rank in self.gone for rank in left)  # the next loss may be known already

    # ---- the leader ----

    def _decide(self):
        left = [rank for rank in range(self.size) if rank not in self.gone]
        if any(rank not in self.reports for rank in left):
            return
        reports, self.reports = self.reports, {}
        if all(report.finished for report in reports.values()) and not self.broken:
            for link in self.links.values():
                self._send(link, END)
            self._set(FINISHED, self.plans)
            return
        plan = settle({rank: reports[rank] for rank in left}, self.addresses[self.rank], self.host())
        for link in self.links.values():
            for rank in left:
                self._send(link, MEMBER, rank, rank in plan.behind)
            self._send(link, ROOT, NOBODY if plan.root is None else plan.root, plan.step)
            self._send(link, GO, plan.port, self.plans + 1)  # not all may have had a lost leader's last plan
        self._set(plan, self.plans + 1)

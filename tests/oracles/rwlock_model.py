"""The lock of event_index/_rwlock.pxd as a finite machine: every schedule of one writer and some
readers that come and go for ever, an atomic access at a time.

What the writer changes is two bits that it flips one after the other: a reader that sees them
differ got in between. Waiting is modelled without the spinning: a thread looks once and goes to
sleep, which allows every order that spinning does. Counters and bits matter only by their
differences, so states that differ in nothing else are one.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

WRITER = 0
WAITS = ("look", "lie down", "count", "look again", "sleep", "slept", "get up", "unlock")


class Thread(NamedTuple):
    at: str  # what it does next
    ticket: int = 0  # a reader's; the writer's: the mark of its turn
    note: int = (
        0  # the writer's: readers it waits for; a reader's: is what it saw not the second bit?
    )
    met: int = 0  # turns of the writer that began while this reader waited


class State(NamedTuple):
    present: int  # readers that arrived and have not left
    mark: int
    asleep: int
    lock: int | None  # the thread that holds it
    waiting: frozenset[int]  # in pthread_cond_wait
    halfway: int  # whether the two bits differ
    threads: tuple[Thread, ...]


def start(readers: int) -> State:
    writer = Thread("write_begin", ticket=2)
    return State(
        0, 0, 0, None, frozenset(), 0, (writer, *[Thread("read_begin") for _ in range(readers)])
    )


class Flaws(NamedTuple):
    """What can be taken away from the protocol."""

    readers_wait: bool = True
    writer_waits: bool = True
    turns_differ: bool = True
    recheck_asleep: bool = True  # look again after having counted oneself among those asleep
    wake_after: bool = True  # whoever moves something looks for sleepers after it, not before


def is_waiting(thread: Thread) -> bool:
    return thread.at in WAITS


def flipped(s: State, bit: int) -> State:
    """After the writer flipped one bit."""
    threads = s.threads
    if bit == 1:
        threads = tuple(
            t._replace(note=t.note ^ 1) if i and t.at == "second" else t
            for i, t in enumerate(threads)
        )
    return s._replace(halfway=s.halfway ^ 1, threads=threads)


def inside(thread: Thread) -> bool:
    return thread.at in ("first", "second")


def step(s: State, who: int, flaws: Flaws) -> list[State]:
    """What the state can become by one access of one thread; nothing if it must wait."""
    me = s.threads[who]

    def go(at: str, *, state: State = s, **changes: int) -> State:
        threads = list(state.threads)
        threads[who] = me._replace(at=at, **changes)
        return state._replace(threads=tuple(threads))

    def blocked() -> bool:
        if who == WRITER:
            return flaws.writer_waits and me.note != 0
        return flaws.readers_wait and s.mark == me.ticket

    def ready(state: State = s) -> State:
        return (
            go("flip", state=state) if who == WRITER else go("first", state=state, ticket=0, met=0)
        )

    match me.at:
        # Waiting, for either.
        case "look":
            return [go("lie down") if blocked() else ready()]
        case "lie down":
            return [go("count", state=s._replace(lock=who))] if s.lock is None else []
        case "count":
            at = "look again" if flaws.recheck_asleep else "sleep"
            return [go(at, state=s._replace(asleep=s.asleep + 1))]
        case "look again":
            return [go("sleep" if blocked() else "get up")]
        case "sleep":
            return [go("slept", state=s._replace(lock=None, waiting=s.waiting | {who}))]
        case "slept":
            awake = who not in s.waiting and s.lock is None
            return [go("look again", state=s._replace(lock=who))] if awake else []
        case "get up":
            return [go("unlock", state=s._replace(asleep=s.asleep - 1))]
        case "unlock":
            return [ready(s._replace(lock=None))]
        # Waking others, for either.
        case "wake":
            rest = "write_begin" if who == WRITER else "read_begin"
            return [go("wake: lock" if s.asleep else rest)]
        case "wake: lock":
            return [go("wake: all", state=s._replace(lock=who))] if s.lock is None else []
        case "wake: all":
            return [go("wake: unlock", state=s._replace(waiting=frozenset()))]
        case "wake: unlock":
            at = "write_begin" if who == WRITER else "read_begin"
            return [go(at, state=s._replace(lock=None))]
        # A reader.
        case "read_begin":
            came = s._replace(present=s.present + 1)
            return [go("look" if s.mark else "first", state=came, ticket=s.mark)]
        case "first":
            return [go("second", note=s.halfway)]
        case "second":
            return [go("torn" if me.note else "read_end", note=0)]
        case "read_end" if not flaws.wake_after and not s.asleep:
            return [go("read_end unseen")]
        case "read_end" | "read_end unseen":
            threads = list(s.threads)
            owed = threads[WRITER].note
            threads[WRITER] = threads[WRITER]._replace(note=max(owed - 1, 0))
            gone = s._replace(present=s.present - 1, threads=tuple(threads))
            return [go("wake" if me.at == "read_end" else "read_begin", state=gone)]
        # The writer.
        case "write_begin":
            turn = me.ticket ^ 1 if flaws.turns_differ else me.ticket
            threads = [
                t._replace(met=min(t.met + 1, 3)) if i and is_waiting(t) else t
                for i, t in enumerate(s.threads)
            ]
            marked = s._replace(mark=turn, threads=tuple(threads))
            return [go("look", state=marked, ticket=turn, note=s.present)]
        case "flip":
            return [go("flip back", state=flipped(s, 0))]
        case "flip back":
            return [go("yield_to_readers", state=flipped(s, 1))]
        case "yield_to_readers":
            # It may go on if nobody came; it opens at the end of its work in any case.
            return [go("write_end")] if s.present else [go("write_end"), go("flip")]
        case "write_end" if not flaws.wake_after and not s.asleep:
            return [go("write_end unseen")]
        case "write_end" | "write_end unseen":
            return [go("wake" if me.at == "write_end" else "write_begin", state=s._replace(mark=0))]
    return []


SOUND = Flaws()
Steps = list[tuple[int, State]]
Graph = dict[State, Steps]


def explore(
    readers: int, flaws: Flaws = SOUND, until: Callable[[State, Steps], bool] | None = None
) -> Graph:
    """Every state that can be reached, and who leads from each to which; or up to one `until`."""
    first = start(readers)
    graph: Graph = {}
    queue = deque([first])
    known = {first}
    while queue:
        state = queue.popleft()
        after = [(who, s) for who in range(readers + 1) for s in step(state, who, flaws)]
        graph[state] = after
        if until is not None and until(state, after):
            break
        for _, s in after:
            if s not in known:
                known.add(s)
                queue.append(s)
    return graph


def starving(graph: Graph, waits: Callable[[State], bool]) -> list[State]:
    """States among which the machine can stay for ever, each of them one where `waits` holds,
    though every thread that can move again and again does move: empty if there are none.
    """
    queue = [{state for state in graph if waits(state)}]
    while queue:
        for part in components(graph, queue.pop()):
            moves = {who for s in part for who, t in graph[s] if t in part}
            stuck = {who for s in part for who, _ in graph[s]} - moves
            if not moves:
                continue
            if not stuck:
                return list(part)
            # These would have to move, which leads out: only where they cannot may it stay.
            queue.append({s for s in part if not stuck & {who for who, _ in graph[s]}})
    return []


def components(graph: Graph, states: set[State]) -> Iterator[set[State]]:
    """Strongly connected components within some states (Tarjan's, without recursion)."""
    index: dict[State, int] = {}
    low: dict[State, int] = {}
    path: list[State] = []
    on_path: set[State] = set()
    for root in states:
        if root in index:
            continue
        work = [(root, iter(graph[root]))]
        index[root] = low[root] = len(index)
        path.append(root)
        on_path.add(root)
        while work:
            state, edges = work[-1]
            for _, after in edges:
                if after in states and after not in index:
                    index[after] = low[after] = len(index)
                    path.append(after)
                    on_path.add(after)
                    work.append((after, iter(graph[after])))
                    break
                if after in on_path:
                    low[state] = min(low[state], index[after])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[state])
                if low[state] == index[state]:
                    part = set()
                    while state not in part:
                        part.add(path.pop())
                    on_path -= part
                    yield part

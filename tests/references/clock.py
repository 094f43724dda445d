"""Who does what in which time unit: tiny clocked simulations of the pipelines, from which every delay is READ OFF.

Microbatches m = 0, 1, ...; microbatch k of minibatch t is m = t N + k.  Stages 1..P.  A stage's update is made at the END of
the unit in which it runs the backward of a minibatch's last microbatch; within a unit everything reads what was there at the
unit's START.
"""


class Clock:
    def __init__(self, P, N, minibatches):
        self.P, self.N, self.minibatches = P, N, minibatches
        self.forward_at = {i: {} for i in range(1, P + 1)}  # [stage][microbatch] -> unit
        self.backward_at = {i: {} for i in range(1, P + 1)}
        self.updated_at = {i: [] for i in range(1, P + 1)}  # [stage] -> the unit at whose end update 0, 1, ... was made

    def ran_backward(self, i, m, unit):
        self.backward_at[i][m] = unit
        if m % self.N == self.N - 1:
            self.updated_at[i].append(unit)

    def version_at(self, i, unit):
        """Updates of stage i complete at the start of `unit`."""
        return sum(1 for u in self.updated_at[i] if u < unit)

    def forward(self, i, t, k):
        return self.version_at(i, self.forward_at[i][t * self.N + k])

    def backward(self, i, t, k):
        return self.version_at(i, self.backward_at[i][t * self.N + k])

    def recompute(self, i, t, k, segment_end):
        """PipeMare A.3: 'the recomputed activation of the last stage in a segment arrives right at the time when the
        corresponding backpropagation needs to process this activation'.  The wave moves one stage a unit, so stage i
        recomputes (segment_end - i) units before the segment's last stage runs this microbatch's backward."""
        return self.version_at(i, self.backward_at[segment_end][t * self.N + k] - (segment_end - i))

    def entered(self, i, m):
        """Version of stage i when microbatch m entered stage 1."""
        return self.version_at(i, self.forward_at[1][m])

    def left(self, i, t):
        """Version of stage i when minibatch t's last microbatch runs the last leg of its round trip (backward on stage 1)."""
        return self.version_at(i, self.backward_at[1][t * self.N + self.N - 1])

    # ---- the same in a pipeline that has long been full, and is not yet draining
    @property
    def late(self):
        return self.minibatches - 2 * self.P - 2

    def lag(self, i, k):
        return self.late - self.forward(i, self.late, k)

    def recompute_lag(self, i, k, segment_end):
        return self.late - self.recompute(i, self.late, k, segment_end)


def long_enough(P, steps):
    return steps + 6 * P + 8


def lockstep(P, N, minibatches, wait):
    """One forward AND one backward on every stage in every unit.  wait = 0: the last stage runs the backward of a
    microbatch in the unit of its forward (stale_weights, DualPipe); wait = 1: in the next unit (PipeMare)."""
    clock, M = Clock(P, N, minibatches), N * minibatches
    forwards, backwards, unit = {}, {}, 0  # stage -> the microbatch handed to it for this unit
    while len(clock.backward_at[1]) < M:
        if unit < M:
            forwards[1] = unit
        next_forwards, next_backwards = {}, {}
        for i, m in forwards.items():
            clock.forward_at[i][m] = unit
            if i < P:
                next_forwards[i + 1] = m
            elif wait == 0:
                backwards[P] = m
            else:
                next_backwards[P] = m
        for i, m in backwards.items():
            clock.ran_backward(i, m, unit)
            if i > 1:
                next_backwards[i - 1] = m
        forwards, backwards, unit = next_forwards, next_backwards, unit + 1
    return clock


def one_forward_one_backward(P, N, minibatches):
    """1F1B: stage l of P begins with P - l forwards, then alternates one forward and one backward; a pass takes one unit
    and starts once what it needs was made in an earlier unit."""
    clock, M = Clock(P, N, minibatches), N * minibatches
    todo = {}
    for i in range(1, P + 1):
        todo[i] = [("F", m) for m in range(min(P - i, M))]
        for m in range(M):
            if P - i + m < M:
                todo[i].append(("F", P - i + m))
            todo[i].append(("B", m))
    unit = 0
    while any(todo.values()):
        for i in range(1, P + 1):
            if not todo[i]:
                continue
            kind, m = todo[i][0]
            if kind == "F":
                needs = clock.forward_at[i - 1].get(m) if i > 1 else -1
            elif i == P:
                needs = clock.forward_at[P].get(m)
            else:
                needs = clock.backward_at[i + 1].get(m)
            if needs is not None and needs < unit:
                todo[i].pop(0)
                if kind == "F":
                    clock.forward_at[i][m] = unit
                else:
                    clock.ran_backward(i, m, unit)
        unit += 1
    return clock

"""The forecast of the fleet in plain Python: lists of requests, every step followed one by one."""

import math

import numpy as np

CONTEXT, CHUNK = 1e5, 8192.0


class OracleFit:
    """Least squares with a prior; every old sample is kept, with its faded weight."""

    def __init__(self, *start):
        self.start = np.array(start, float)
        self.theta = self.start.copy()
        self.samples = []
        self.error = self.mean = 0.0

    def predict(self, x):
        return float(self.theta @ np.array(x))

    def add(self, x, y):
        error, weight = abs(y - self.predict(x)), 1.0
        if not self.samples:
            self.error, self.mean = error, y
        elif error > 6 * self.error > 0:
            weight = 6 * self.error / error
            error = 6 * self.error
        self.error += 0.02 * (error - self.error)
        self.mean += 0.02 * (y - self.mean)
        self.samples = [(a, b, w * 0.999) for a, b, w in self.samples]
        self.samples.append((np.array(x, float), y, weight))
        moments = 0.01 * np.eye(3) + sum(w * np.outer(a, a) for a, _, w in self.samples)
        products = 0.01 * self.start + sum(w * b * a for a, b, w in self.samples)
        self.theta = np.maximum(0.0, np.linalg.solve(moments, products))


class OracleRequest:
    def __init__(self, request_id, isl, tokens, now):
        self.id, self.context, self.booked_at = request_id, isl, now
        self.begin = self.end = 0  # its place in the stream
        self.tokens = tokens
        self.step_end = None  # place and number of the step that is forecast to have computed it
        self.step = 0
        self.queued = True


class OracleLane:
    def __init__(self, budget, blocks):
        self.budget, self.blocks = budget or 8192, blocks or 0
        self.requests = []  # all in flight, in the order of booking
        self.done = self.running = self.end = self.anchor = self.steps = 0
        self.began = self.anchor_at = self.at = 0.0
        self.ends = math.inf
        self.context_s = self.requests_s = self.prefill_s = 0.0
        self.then = 0.0, 0.0  # the first two of them, at the anchor
        self.seen_s = self.expected_s = 0.0

    @property
    def queue(self):
        return [r for r in self.requests if r.queued]

    @property
    def decoding(self):
        return [r for r in self.requests if not r.queued or r.step_end is not None]


class OracleForecast:
    def __init__(self, params):
        self.params = params
        self.lanes = {}
        self.where = {}
        self.prefill = OracleFit(params.step_s, params.token_s * CHUNK, 1.0)
        self.decode = OracleFit(params.step_s / 2, params.context_s * CONTEXT, 0.0)
        self.ttft, self.output = params.ttft_s, params.output_tokens
        self.answer = params.output_tokens * params.step_s
        self.told = 0

    def add_worker(self, number, budget, blocks):
        self.lanes[number] = OracleLane(budget, blocks)

    def remove_worker(self, number):
        for request in self.lanes.pop(number).requests:
            del self.where[request.id]

    def factor(self, lane):
        prior = 4 * self.prefill.mean
        if lane.expected_s <= 0 or prior <= 0:
            return 1.0
        factor = (lane.seen_s + prior) / (lane.expected_s + prior)
        return max(1.0, factor - 0.1) if factor > 1 else min(1.0, factor + 0.1)

    def decodes_s(self, lane):
        """What those decoding add to a step."""
        context, count = sum(r.context for r in lane.decoding), len(lane.decoding)
        return self.decode.predict([1.0, context / CONTEXT, count]) if count else 0.0

    def decoded_s(self, lane, now):
        """What those decoding since the anchor have added to a step, on average."""
        passed = now - lane.anchor_at
        context = (lane.context_s - lane.then[0]) / passed
        count = (lane.requests_s - lane.then[1]) / passed
        return self.decode.predict([min(1.0, count), context / CONTEXT, count])

    def anchor(self, lane, place, now):
        lane.done = lane.anchor = place
        lane.anchor_at, lane.steps = now, 0
        lane.then = lane.context_s, lane.requests_s

    def empty_step_s(self, lane, factor):
        theta = self.prefill.theta
        return factor * max(1e-6, theta[0] + theta[2] * self.decodes_s(lane))

    def token_s(self, factor):
        return factor * self.prefill.theta[1] / CHUNK

    def integrate(self, lane, now):
        passed = now - lane.at
        if passed > 0:
            told = [r for r in lane.requests if not r.queued]
            lane.context_s += sum(r.context for r in told) * passed
            lane.requests_s += len(told) * passed
            lane.prefill_s += passed * (lane.running > 0)
            lane.at = now

    def begin_step(self, lane, factor, at):
        lane.running = min(lane.budget, lane.end - lane.done)
        lane.began = at
        lane.ends = math.inf
        if lane.running:
            step = self.empty_step_s(lane, factor) + lane.running * self.token_s(factor)
            lane.ends = at + step

    def advance(self, lane, factor, now):
        while lane.ends <= now:
            self.integrate(lane, lane.ends)
            lane.done += lane.running
            lane.steps += 1
            for request in lane.queue:
                if request.step_end is None and request.end <= lane.done:
                    request.step_end, request.step = lane.done, lane.steps
            self.begin_step(lane, factor, lane.ends)
        self.integrate(lane, now)

    def book(self, request_id, number, isl, tokens, now):
        if request_id in self.where:
            return False
        lane = self.lanes[number]
        factor = self.factor(lane)
        self.advance(lane, factor, now)
        if not lane.queue:
            lane.end = 0
            self.anchor(lane, 0, now)
        lane.end += tokens
        request = OracleRequest(request_id, isl, tokens, now)
        request.end = lane.end
        lane.requests.append(request)
        self.where[request_id] = number, request
        if lane.running == 0 or lane.began >= now:
            self.begin_step(lane, factor, now)
        return True

    def unqueue(self, lane, request):
        request.queued = False
        if not lane.queue:
            lane.running, lane.ends = 0, math.inf

    def first_token(self, request_id, now):
        if request_id not in self.where or not self.where[request_id][1].queued:
            return False
        number, request = self.where[request_id]
        lane = self.lanes[number]
        self.advance(lane, self.factor(lane), now)
        place, steps = request.step_end, request.step
        if place is None:
            place, steps = lane.done + lane.running, lane.steps + 1
            while place < request.end:
                place, steps = min(place + lane.budget, lane.end), steps + 1
        first = lane.queue[0] is request
        self.unqueue(lane, request)
        if lane.anchor_at < now:
            if first and place > lane.anchor:
                took, steps = now - lane.anchor_at, max(steps, 1)
                beside = steps * self.decoded_s(lane, now)
                x = [steps, (place - lane.anchor) / CHUNK, beside]
                if len(self.prefill.samples) >= 30:
                    for each in self.lanes.values():
                        each.seen_s *= 0.98 ** (1 / len(self.lanes))
                        each.expected_s *= 0.98 ** (1 / len(self.lanes))
                    lane.seen_s += took
                    lane.expected_s += self.prefill.predict(x)
                self.prefill.add(x, took)
            self.anchor(lane, place, now)
            for each in lane.queue:
                each.step_end, each.step = (None if each.end > place else place), 0
            self.begin_step(lane, self.factor(lane), now)
        self.told += 1
        self.ttft += 0.01 * (now - request.booked_at - self.ttft)
        request.first_at = now
        request.then = lane.context_s, lane.requests_s, lane.prefill_s
        return True

    def end(self, request_id, now, output_tokens):
        if request_id not in self.where:
            return False
        number, request = self.where.pop(request_id)
        lane = self.lanes[number]
        self.advance(lane, self.factor(lane), now)
        if request.queued:
            queue = lane.queue
            place = queue.index(request)
            begins = max(lane.done + lane.running, queue[place - 1].end if place else 0)
            left = max(0, request.end - begins)
            lane.end -= left
            for each in queue[place:]:
                each.end -= left
            self.unqueue(lane, request)
        else:
            self.learn_decode(lane, request, now, output_tokens)
        lane.requests.remove(request)
        return True

    def learn_decode(self, lane, request, now, output_tokens):
        took = now - request.first_at
        tokens = output_tokens or self.output
        if took <= 0:
            return
        if output_tokens:
            self.output += 0.01 * (output_tokens - self.output)
        self.answer += 0.01 * (min(took, 10 * self.answer) - self.answer)
        context_s, requests_s, prefill_s = request.then
        stalled = lane.prefill_s - prefill_s
        if tokens < 8 or stalled > 0.9 * took:
            return
        x = [
            1.0,
            (lane.context_s - context_s) / took / CONTEXT,
            (lane.requests_s - requests_s) / took,
        ]
        self.decode.add(x, (took - stalled) / (tokens - 1))

    def cost(self, number, isl, block_size, overlap, blocks, now):
        lane, params = self.lanes[number], self.params
        tokens = isl - min(overlap * block_size, isl - 1)
        factor = self.factor(lane)
        self.advance(lane, factor, now)
        per_step, per_token = self.empty_step_s(lane, factor), self.token_s(factor)
        ahead, wait = 0, 0.0
        count, context = len(lane.requests), sum(r.context for r in lane.requests)
        if lane.running:
            ahead = lane.end - lane.done
            if lane.began < now:
                ahead, wait = ahead - lane.running, lane.ends - now
        elif lane.queue and self.told:
            wait = per_step / 4 + min(0.5 * (now - lane.began), self.answer)
        elif count:
            wait = factor * self.decodes_s(lane) / 2
        before, steps = -(-ahead // lane.budget), -(-(ahead + tokens) // lane.budget)
        wait += before * per_step + ahead * per_token
        prefill = (steps - before) * per_step + tokens * per_token
        delay = 0.0
        if ahead:
            last = ahead - (before - 1) * lane.budget
            delayed = [r for r in reversed(lane.queue) if r.end > lane.end - last][:16]
            weight = sum(max(1.0, (now + wait - r.booked_at) / self.ttft) for r in delayed)
            delay = weight * min(tokens, lane.budget - last) * per_token
        memory = 0.0
        if lane.blocks and blocks > lane.blocks and count:
            ends = math.ceil((blocks - lane.blocks) / lane.blocks * count)
            memory = ends * self.answer / count
        theta = self.decode.theta
        shared = context + count * (isl + self.output / 2)
        decode = theta[1] / CONTEXT * shared + theta[2] * 2 * count
        decode *= factor * self.output / 2
        ttft = wait + prefill + memory
        own = params.prefill_weight * prefill + params.decode_weight * decode
        return ttft + delay + own / (1 + ttft / self.ttft)

    def room_in(self, numbers, active_blocks, now):
        """`active_blocks` by number: seconds until one of these workers has room."""
        soonest, late = math.inf, False
        for number in numbers:
            lane = self.lanes[number]
            if lane.requests and lane.blocks and active_blocks[number] >= lane.blocks:
                continue
            factor = self.factor(lane)
            self.advance(lane, factor, now)
            if not lane.running and lane.queue and now - lane.began > self.ttft:
                late = True
                continue
            if not lane.running or len(self.prefill.samples) < 30:
                return 0.0
            per_step = self.empty_step_s(lane, factor)
            ahead, wait = lane.end - lane.done, 0.0
            if lane.began < now:
                ahead, wait = ahead - lane.running, lane.ends - now
            wait += -(-ahead // lane.budget) * per_step + ahead * self.token_s(factor)
            soonest = min(soonest, max(0.0, wait - per_step / 2))
        if not numbers or (late and soonest == math.inf):
            return 0.0
        return soonest

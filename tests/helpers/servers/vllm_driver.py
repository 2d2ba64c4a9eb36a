"""Policies by functions, and a driver of kvgym's scheduler over the stand-in for vLLM's, with batches of one second."""

from kvgym.policies.policy import Decision, Policy, PolicyInfo

BATCH_TIME = {"kind": "affine", "constant": 1.0}


class Chosen(Policy):
    """Decides by a function of the view; raises what it returns if that is an exception."""

    info = PolicyInfo(name="chosen", summary="of tests", chunks_prefill=True, pauses=True, evicts=True)

    def __init__(self, decide):
        self.decide = decide

    def schedule(self, view):
        made = self.decide(view)
        if isinstance(made, Exception):
            raise made
        return made


def everything(view):
    return Decision(admit=tuple(view.waiting.request_id.tolist()))


class Driver:
    """Runs a scheduler with batches of one second."""

    def __init__(self, scheduler):
        self.scheduler, self.clock, self.batches = scheduler, 0.0, []

    @classmethod
    def of(cls, scheduler):
        made = scheduler.driver = cls(scheduler)
        scheduler.now = scheduler.wall = lambda: made.clock
        scheduler._origin = 0.0
        scheduler._build()
        return made

    def step(self):
        output = self.scheduler.schedule()
        if output.num_scheduled_tokens:
            self.batches.append((self.clock, output.num_scheduled_tokens))
            self.clock += 1.0
            self.scheduler.update_from_output(output, None)
        return output.num_scheduled_tokens

    def run(self, most=300):
        while self.scheduler.requests and most:
            most -= 1
            if not self.step():
                self.clock = max(self.clock + 1.0, min(self.scheduler.resting_until, self.clock + 5.0))
        assert most


def tokens_of(scheduler, count):
    return [scheduler.driver.step() for _ in range(count)]

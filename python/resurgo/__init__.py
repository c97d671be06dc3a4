# SPDX-License-Identifier: Apache-2.0
"""Jobs of `resurgo run`, started and watched from Python, and `resurgo.ft` for programs that run in them.

    import resurgo

    with resurgo.run(["./app"], n=4, options=["--checkpoint-every", "1m"]) as job:
        for event in job.events():
            print(event["time"], event["event"])

`resurgo run --ft` puts this package into the path of Python. Only `resurgo.ft` needs mpi4py.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .job import Error, Event, Job, jobs, resume, run

__all__ = ["Error", "Event", "Job", "jobs", "resume", "run"]


def __getattr__(name):
    """Loads what starts jobs when it is first used: ranks that want `resurgo.ft` alone begin sooner."""
    if name in __all__:
        from . import job

        return getattr(job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__])

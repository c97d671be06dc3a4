//! The trace of the job: the dispatcher asks nodes for it, and hands it on ([`super::bus`]).

use std::time::{Duration, Instant};

use resurgo_wire::control::{ToAgent, ToDispatcher};

use super::Dispatcher;

impl Dispatcher {
    /// How long until nodes are to be asked for what is new in their ranks' traces.
    pub(super) fn trace_due(&self, now: Instant) -> Option<Duration> {
        let trace = self.bus.trace().filter(|_| self.verdict.is_none())?;
        Some(trace.due().saturating_duration_since(now))
    }

    /// Asks them, if it is time.
    pub(super) fn mind_trace(&mut self) {
        let now = Instant::now();
        if self.trace_due(now).is_some_and(|due| due.is_zero())
            && let Some(trace) = self.bus.trace_mut()
        {
            let asked_ns = trace.asks(now);
            self.agents.tell(&ToAgent::Trace { asked_ns });
        }
    }

    /// An agent's message about traces.
    pub(super) fn heard_of_trace(&mut self, node: usize, message: ToDispatcher) {
        let Some(trace) = self.bus.trace_mut() else { return };
        match message {
            ToDispatcher::Traced(piece) => trace.takes(node, piece),
            ToDispatcher::TraceTime { asked_ns, own_ns } => trace.hears_time(node, asked_ns, own_ns),
            _ => {}
        }
    }
}

//! Signals to `resurgo run`. They reach the ranks unchanged, as under mpiexec: programs save their state on one, and go
//! on or end. A rank that such a signal ends was ended by the user, and does not start again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use resurgo_wire::control::{End, Ended, ToAgent};

use super::Dispatcher;
use super::ends::signal_name;

/// The signals that the dispatcher receives.
const HEARD: [Signal; 8] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

pub(super) struct Signals {
    descriptor: SignalFd,
    /// Takes images instead of going to the ranks, where there can be images.
    takes_images: Option<Signal>,
    /// Tells that this machine is about to be taken away.
    preempts: Option<Signal>,
    /// How long ranks may take to end.
    pub grace: Duration,
    /// Numbers of the signals passed on.
    passed_on: Vec<i32>,
    /// The user ends the job with this signal; ranks left at that moment are killed.
    ending: Option<(i32, Instant)>,
    /// This signal suspends the job; if no rank is halted by then, the job ends.
    suspending: Option<(i32, Instant)>,
}

impl Signals {
    /// Blocks the signals and makes them readable, except those that this process was started to ignore (as by
    /// `nohup`).
    pub fn watch(takes_images: Option<Signal>, preempts: Option<Signal>, grace: Duration) -> io::Result<Signals> {
        let ignored = std::fs::read_to_string("/proc/self/status")?
            .lines()
            .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok())
            .unwrap_or(0);
        let is_heard = |signal: &Signal| ignored >> (*signal as i32 - 1) & 1 == 0;
        let mut mask: SigSet = HEARD.into_iter().filter(is_heard).collect();
        let descriptor = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        // Reading a terminal from the background then fails with EIO instead of stopping the job.
        mask.add(Signal::SIGTTIN);
        mask.thread_block()?;
        Ok(Signals {
            descriptor,
            takes_images,
            preempts,
            grace,
            passed_on: Vec::new(),
            ending: None,
            suspending: None,
        })
    }

    pub fn next(&self) -> nix::Result<Option<i32>> {
        Ok(self.descriptor.read_signal()?.map(|signal| signal.ssi_signo as i32))
    }

    /// The signal by which the user ends a job that has not begun. Others are for ranks, and there are none.
    pub fn ended(&self) -> io::Result<Option<Signal>> {
        while let Some(number) = self.next()? {
            let signal = Signal::try_from(number)?;
            if [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT].contains(&signal) {
                return Ok(Some(signal));
            }
        }
        Ok(None)
    }

    /// When ranks that have not ended are killed.
    pub fn due(&self) -> Option<Instant> {
        self.ending.or(self.suspending).map(|(_, deadline)| deadline)
    }

    /// The signal by which the user has ended this rank.
    fn has_ended(&self, ended: &Ended) -> Option<i32> {
        match (ended.end, self.ending) {
            (End::Signalled(signal), _) if self.passed_on.contains(&signal) => Some(signal),
            (_, Some((signal, _))) => Some(signal),
            _ => None,
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Dispatcher {
    pub(super) fn signalled(&mut self, number: i32) {
        let signal = Signal::try_from(number).ok();
        if signal.is_some() && signal == self.front.signals.takes_images && self.images.without.is_none() {
            if self.verdict.is_none() {
                self.want_images(None);
            }
            return;
        }
        let is_notice = signal.is_some() && signal == self.front.signals.preempts;
        match signal {
            Some(signal) if (is_notice || signal == Signal::SIGTERM) && self.can_be_suspended_by_signal() => {
                self.front.signals.suspending = Some((number, Instant::now() + self.front.signals.grace));
                self.suspend(None);
            }
            Some(signal) if is_notice && self.is_preempted_here(signal) => {}
            Some(Signal::SIGINT | Signal::SIGTERM | Signal::SIGHUP) => self.end_by(number),
            Some(Signal::SIGTSTP) => {
                self.pass_on(number);
                self.stop();
            }
            _ => self.pass_on(number),
        }
    }

    fn pass_on(&mut self, number: i32) {
        if !self.front.signals.passed_on.contains(&number) {
            self.front.signals.passed_on.push(number);
        }
        self.tell(ToAgent::Signal { number });
    }

    /// A user who ends the job can resume it later. A second signal ends it.
    fn can_be_suspended_by_signal(&self) -> bool {
        let is_first = self.front.signals.suspending.is_none() && self.front.signals.ending.is_none();
        is_first && self.verdict.is_none() && self.suspension.can_be() && self.pids.iter().any(Option::is_some)
    }

    /// Ends the job if it cannot be suspended in time. Halted ranks need no more time.
    fn mind_suspending(&mut self) {
        let Some((number, deadline)) = self.front.signals.suspending.filter(|_| self.verdict.is_none()) else {
            return;
        };
        let is_late = Instant::now() >= deadline && !self.suspension.has_halted();
        if is_late || !self.suspension.is_under_way() {
            self.front.signals.suspending = None;
            self.end_by(number);
        }
    }

    /// The user ends the job: ranks get the signal, and some time to end in their own way.
    pub(super) fn end_by(&mut self, number: i32) {
        if self.interrupted || self.front.signals.ending.is_some() || self.verdict.is_some() {
            // The user insists, or the job is being ended anyhow.
            if !self.interrupted {
                self.interrupted = true;
                self.bus.error(&format!("ended by {}", signal_name(number)));
            }
            self.end(128 + number, Duration::ZERO);
            self.end_at_once();
            return;
        }
        let someone_runs = self.pids.iter().any(Option::is_some);
        let grace = if someone_runs {
            self.front.signals.grace
        } else {
            Duration::ZERO
        };
        self.front.signals.ending = Some((number, Instant::now() + grace));
        self.pass_on(number);
    }

    /// Kills processes that have not ended in time after the user's signal.
    pub(super) fn mind_grace(&mut self) {
        self.mind_suspending();
        let Some((number, deadline)) = self.front.signals.ending.filter(|_| self.verdict.is_none()) else {
            return;
        };
        if Instant::now() >= deadline {
            self.interrupted = true;
            self.bus.error(&format!("ended by {}", signal_name(number)));
            self.end(128 + number, Duration::ZERO);
        }
    }

    /// An unfinished rank has ended: if the user has ended it, the job ends. Returns whether it does.
    pub(super) fn ended_by_user(&mut self, ended: &Ended) -> bool {
        let Some(signal) = self.front.signals.has_ended(ended) else {
            return false;
        };
        self.interrupted = true;
        self.bus.error(&format!("ended by {}", signal_name(signal)));
        let code = match ended.end {
            End::Exited(code) if code & 0xff != 0 => code,
            End::Signalled(signal) => 128 + signal,
            // The program has not finished.
            End::Exited(_) => 128 + signal,
        };
        // The other ranks have got the signal, too.
        let grace = match self.front.signals.ending {
            Some((_, deadline)) => deadline.saturating_duration_since(Instant::now()),
            None => self.front.signals.grace,
        };
        self.end(code, grace);
        true
    }

    /// Stops this process as SIGTSTP would (not at all where no shell could continue it). It goes on with SIGCONT.
    fn stop(&mut self) {
        if !self.agents.send_all() {
            return;
        }
        let stop = SigSet::from(Signal::SIGTSTP);
        if raise(Signal::SIGTSTP).is_ok() && stop.thread_unblock().is_ok() {
            let _ = stop.thread_block();
        }
    }
}

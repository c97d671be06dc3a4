//! How an agent hears that its machine is about to be taken away: by a signal, or by a file that appears.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use resurgo_wire::control::ToDispatcher;

use super::Agent;

/// How often it is looked for the file.
const LOOK: Duration = Duration::from_millis(500);

impl Agent {
    /// From now on the signal of the job's preemption is heard.
    pub(super) fn hear_of_preemption(&mut self) -> io::Result<()> {
        let preemption = self.guest.as_ref().map(|guest| &guest.preemption);
        let signal = preemption
            .and_then(|preemption| preemption.signal)
            .map(Signal::try_from);
        if let Some(signal) = signal.transpose()? {
            let mut mask = SigSet::from(Signal::SIGCHLD);
            mask.add(signal);
            mask.thread_block()?;
            self.children.set_mask(&mask)?;
        }
        Ok(())
    }

    /// Children have ended, which is looked at elsewhere; or a notice has come.
    pub(super) fn hear_signals(&mut self) -> io::Result<()> {
        while let Some(heard) = self.children.read_signal()? {
            if heard.ssi_signo != Signal::SIGCHLD as u32 {
                let name = Signal::try_from(heard.ssi_signo as i32).map_or("a signal", Signal::as_str);
                self.is_preempted(format!("its agent has got {name}"))?;
            }
        }
        Ok(())
    }

    /// Looks whether there is the file that is such a notice.
    pub(super) fn look_for_notice(&mut self) -> io::Result<()> {
        let file = self.guest.as_ref().and_then(|guest| guest.preemption.file.as_ref());
        let Some(file) = file else { return Ok(()) };
        let looked = self.preempted.looked.is_some_and(|looked| looked.elapsed() < LOOK);
        if self.preempted.is_told || looked {
            return Ok(());
        }
        self.preempted.looked = Some(Instant::now());
        match Path::new(file).exists() {
            true => self.is_preempted(format!("there is a file {}", file.display())),
            false => Ok(()),
        }
    }

    fn is_preempted(&mut self, reason: String) -> io::Result<()> {
        if std::mem::replace(&mut self.preempted.is_told, true) {
            return Ok(());
        }
        self.send(&ToDispatcher::Preempted { reason })
    }
}

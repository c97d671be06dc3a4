//! Notice that an agent's machine is about to be taken away: by a signal, a file that appears, or a page of the cloud.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};
use resurgo_wire::control::ToDispatcher;

use super::Agent;
use crate::page::Page;

/// How often the agent looks for the file.
const LOOK: Duration = Duration::from_millis(500);
/// How often a thread asks for the page.
const ASK: Duration = Duration::from_secs(1);

impl Agent {
    /// From now on the agent receives the signal of the job's preemption.
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
        let url = preemption.and_then(|preemption| preemption.url.as_ref());
        // One that cannot be understood has been refused by the dispatcher.
        if let Some(Ok(page)) = url.map(|url| Page::at(url)) {
            self.preempted.page = Some(ask(page)?);
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

    /// Looks whether the notice's file exists.
    pub(super) fn look_for_notice(&mut self) -> io::Result<()> {
        if self.preempted.page.as_ref().is_some_and(|page| page.try_recv().is_ok()) {
            self.is_preempted("the page of its preemption says so".to_string())?;
        }
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

/// Starts a thread that asks for the page until the page announces the preemption.
fn ask(page: Page) -> io::Result<Receiver<()>> {
    let (says, hears) = sync_channel(0);
    let ask = move || {
        // A server that does not answer now may do so later.
        while !page.says_so().unwrap_or(false) {
            std::thread::sleep(ASK);
        }
        let _ = says.send(());
    };
    std::thread::Builder::new().name("notice".to_string()).spawn(ask)?;
    Ok(hears)
}

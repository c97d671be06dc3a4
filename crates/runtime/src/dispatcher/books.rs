//! Output, PMI and input of ranks: the dispatcher keeps the ledger and passes on what is new.

use std::io;
use std::time::Instant;

use resurgo_pmi::{Notice, Output};
use resurgo_wire::control::{Stream, ToAgent, ToDispatcher, WantedProgram};
use resurgo_wire::node_memory::event_of;

use super::events::Event;
use super::ledger::{Accepted, Part};
use super::{Dispatcher, FAILURE, QUEUE, input};

impl Dispatcher {
    /// Enters what lives print, say and read into the ledger, with the marks in between.
    pub(super) fn keep_books(&mut self, message: ToDispatcher) {
        match message {
            ToDispatcher::Began {
                rank,
                life,
                image,
                repeats,
            } => self.began(rank, life, image, repeats),
            ToDispatcher::Said { rank, life, lines } => self.said(rank, life, &lines),
            ToDispatcher::Output {
                rank,
                life,
                stream,
                repeated,
                bytes,
            } => self.printed((rank, life), stream, repeated, &bytes),
            // Images of a former course may have been written until then.
            ToDispatcher::Deliveries { epoch, .. } if epoch < self.ledger.course => {}
            ToDispatcher::Deliveries { events, stable, .. } => self.vouch(&events, &stable),
            ToDispatcher::OutputAwaited { rank, life } => self.output_awaited(rank, life),
            ToDispatcher::OutputEnd { rank, finished } => self.output_ended(rank, finished),
            ToDispatcher::AtImage {
                rank,
                life,
                image,
                read,
                heard,
            } => {
                let oldest = self.coordinator.oldest_image(rank as u32);
                let account = self.ledger.note_account((rank, life), image, read, heard, oldest);
                self.tell(ToAgent::Accounted { rank, image, account });
            }
            ToDispatcher::StdinWanted { life } => self.stdin_wanted(life),
            _ => {}
        }
    }

    /// What follows of what ranks print depends on these deliveries.
    fn vouch(&mut self, events: &[[u64; 4]], stable: &[(u32, u64)]) {
        for event in events {
            if let Err(contradiction) = self.ledger.vouched.add(event_of(*event)) {
                return self.cannot_go_on(&format!("what ranks print does not go together: {contradiction}"));
            }
        }
        stable
            .iter()
            .for_each(|(rank, stable)| self.ledger.vouched.forget(*rank, *stable));
    }

    /// A life begins.
    fn began(&mut self, rank: usize, life: u64, image: u64, replays: bool) {
        let Some(output) = self.ledger.began(rank, life, image, replays) else {
            self.cannot_go_on(&format!("there is no account of image {image} of rank {rank}"));
            return;
        };
        if life > 1 {
            self.tell(ToAgent::Repeats { rank, life, output });
        }
    }

    /// A life has printed something, perhaps again.
    fn printed(&mut self, (rank, life): (usize, u64), stream: Stream, repeated: bool, bytes: &[u8]) {
        let accepted = self.ledger.printed(rank, life, stream, bytes);
        let (all, new) = (bytes.len() as u64, accepted.new.len().min(bytes.len()) as u64);
        let node = self.node_of(rank);
        let owed = &mut self.owed[node];
        owed.later[usize::from(repeated)] += new;
        owed.now[usize::from(repeated)] += all - new;
        self.show(rank, stream, &accepted);
        self.tell_repeats(rank);
    }

    fn show(&mut self, rank: usize, stream: Stream, accepted: &Accepted) {
        if let Some(difference) = accepted.difference {
            self.bus.tell(Event::OutputDiffers {
                rank,
                stream,
                offset: difference.offset,
                anew: difference.anew,
            });
        }
        if !accepted.new.is_empty() {
            self.output.take(rank, stream, &accepted.new, Instant::now());
        }
    }

    /// Tells the agent when a rank has printed again what its former lives printed.
    fn tell_repeats(&mut self, rank: usize) {
        if let Some((life, output)) = self.ledger.repeats_anew(rank) {
            self.tell(ToAgent::Repeats { rank, life, output });
            if !output[0] {
                self.survivor_has_printed(rank);
            }
        }
    }

    /// A life has taken too long to repeat its output.
    fn output_awaited(&mut self, rank: usize, life: u64) {
        let bytes = self.ledger.forgive(rank, life);
        if bytes > 0 {
            self.bus.tell(Event::OutputMissing { rank, bytes });
            self.tell_repeats(rank);
        }
    }

    /// All output of a rank without a process is here.
    fn output_ended(&mut self, rank: usize, finished: bool) {
        // The rank may have finished before its unit had to return.
        let finished = finished && self.policy.has_finished(rank);
        if finished || self.verdict.is_some() {
            for stream in Stream::ALL {
                let accepted = self.ledger.end_output(rank, stream);
                self.show(rank, stream, &accepted);
            }
        }
        if finished {
            let bytes = self.ledger.forgive_last(rank);
            if bytes > 0 {
                self.bus.tell(Event::OutputMissing { rank, bytes });
            }
        }
        // A failed rank goes on where its last life stopped, in the middle of a line if need be.
        if self.pids[rank].is_none() && self.policy.has_finished(rank) {
            self.output.end(rank);
        }
    }

    /// Tells each agent how much of its output the dispatcher has taken.
    pub(super) fn acknowledge(&mut self) {
        let has_room = self.output.queued() < QUEUE;
        for (node, owed) in self.owed.iter_mut().enumerate() {
            let mut taken = std::mem::take(&mut owed.now);
            if has_room {
                let later = std::mem::take(&mut owed.later);
                taken = [taken[0] + later[0], taken[1] + later[1]];
            }
            let [bytes, repeated] = taken;
            if bytes + repeated > 0 {
                self.agents.node(node).tell(&ToAgent::OutputTaken { bytes, repeated });
            }
        }
    }

    /// A life has said something to PMI.
    fn said(&mut self, rank: usize, life: u64, lines: &[u8]) {
        self.ledger.said(rank, life, lines);
        while let Some(command) = self.ledger.next_command(rank) {
            let server = &mut self.ledger.server;
            let (answers, notice) = match command {
                Ok(command) => server.command(rank, &command),
                Err(error) => server.malformed(rank, &error),
            };
            answers.into_iter().for_each(|answer| self.answer(answer));
            match notice {
                Some(Notice::Abort { rank, code }) => self.aborted(rank, code),
                Some(Notice::Malformed { rank, error }) => {
                    let text = format!("sent {error}");
                    self.bus.tell(Event::PmiTrouble { rank, text: &text });
                }
                Some(Notice::Spawn { rank, programs }) => {
                    let wanted = programs.into_iter().map(|program| WantedProgram {
                        ranks: program.ranks,
                        name: program.name,
                        arguments: program.arguments,
                        info: program.info,
                    });
                    self.spawn(rank, &wanted.collect::<Vec<_>>());
                }
                None => {}
            }
        }
    }

    /// Sends PMI's answers together, when all that has come is processed.
    pub(super) fn answer(&mut self, Output { rank, line }: Output) {
        let life = self.ledger.answered(rank, &line);
        let lines = line.into_bytes();
        let node = self.node_of(rank);
        self.agents.node(node).queue(&ToAgent::Answer { rank, life, lines });
    }

    fn aborted(&mut self, rank: usize, code: i32) {
        self.bus.tell(Event::Aborted { rank, exit_code: code });
        // An exit status has eight bits; one that would look like success must not.
        let code = if code & 0xff == 0 { FAILURE } else { code & 0xff };
        self.end_program(code);
    }

    /// More of standard input must be read for rank 0.
    pub(super) fn wants_stdin(&self) -> bool {
        let input = self.ledger.input.as_ref();
        self.verdict.is_none() && input.is_some_and(|input| input.lacks())
    }

    /// A life of rank 0 has room for more input.
    fn stdin_wanted(&mut self, life: u64) {
        if self.ledger.is_present(0, life)
            && let Some(input) = &mut self.ledger.input
        {
            input.want();
        }
        self.give_stdin();
    }

    /// Reads the input that is there.
    pub(super) fn take_stdin(&mut self) {
        let read = input::take();
        let Some(spool) = &mut self.ledger.input else { return };
        match read {
            Ok(bytes) if bytes.is_empty() => spool.end(),
            Ok(bytes) => {
                if let Err(error) = spool.push(&bytes) {
                    self.cannot_go_on(&format!("cannot keep standard input: {error}"));
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The job went to the background between the check and the read.
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EIO as i32) && !input::may_read() => {}
            Err(error) => {
                spool.end();
                self.bus
                    .error(&format!("cannot read standard input: {error}; rank 0 sees its end"));
            }
        }
        self.give_stdin();
    }

    /// Sends rank 0 the input that it has yet to read.
    fn give_stdin(&mut self) {
        let life = self.ledger.life(0);
        let next = self.ledger.input.as_mut().map_or(Ok(None), |input| input.next());
        match next {
            Ok(Some(Part::Bytes(bytes))) => self.tell(ToAgent::Stdin { life, bytes }),
            Ok(Some(Part::End)) => self.tell(ToAgent::StdinEnd { life }),
            Ok(None) => {}
            Err(error) => self.cannot_go_on(&format!("cannot read standard input again: {error}")),
        }
    }
}

//! When the record of a job on several nodes is gathered, written, and used.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use resurgo_protocol::{Command, Fact};
use resurgo_wire::control::{Job, Nodes, Sight, ToAgent};
use serde_json::Value;

use super::Dispatcher;
use super::cluster::Cluster;
use super::events::Event;
use super::job_files::{Ended, Found, JobFiles, What};
use super::start_error::StartError;
use crate::suspended::ranks::{ImagesState, RankState};

impl Dispatcher {
    /// By rank, the user's name of its node, where there are several.
    pub(super) fn node_names(&self) -> Vec<String> {
        let names = (0..self.pids.len()).map(|rank| self.agents.name(self.node_of(rank)).map(str::to_string));
        names.collect::<Option<_>>().unwrap_or_default()
    }

    /// The coordinator wants a wave recorded, or the record removed: its command also makes agents do their part.
    pub(super) fn begin_gathering(&mut self, command: &Command) {
        if *command == Command::ForgetRecord {
            return self.forget_record();
        }
        let Command::Record { wave, oldest } = command else {
            return;
        };
        let (number, oldest) = (*wave, *oldest);
        let (nodes, ends) = (self.agents.numbers(), self.states_of_ends(number));
        if let Some(files) = &mut self.suspension.files {
            files.gather(What::Wave { number, oldest }, nodes, ends);
        }
    }

    /// The states of ranks whose ends are part of the wave: their nodes may be lost, and report nothing.
    fn states_of_ends(&self, wave: u64) -> BTreeMap<usize, Value> {
        let programs = self.suspension.files.as_ref().map(JobFiles::programs);
        let programs = programs.into_iter().flatten().enumerate();
        let over = programs.filter(|(rank, _)| self.coordinator.has_end(*rank as u32, wave));
        let state = |(rank, program): (usize, u32)| {
            let state = RankState {
                program: program as usize,
                number: self.ledger.life(rank),
                finished: true,
                ended_well: self.policy.exit_code() == 0,
                images: ImagesState {
                    asked: self.coordinator.last_asked(rank as u32),
                    last_slot: 0,
                    begun: false,
                    files: Vec::new(),
                },
                noted: Vec::new(),
                notes_lost_ns: 0,
            };
            Some((rank, serde_json::to_value(state).ok()?))
        };
        over.filter_map(state).collect()
    }

    /// An agent reports its ranks. When all have reported, the record waits until all earlier output is written.
    pub(super) fn state_told(&mut self, node: usize, wave: Option<u64>, ranks: Vec<(usize, Value)>) {
        let files = self.suspension.files.as_mut();
        match files.and_then(|files| files.heard(node, wave, ranks)) {
            Some(What::Wave { number, .. }) => self.wave_in_files(number),
            // All output is written; a suspension waits for nothing else.
            Some(What::Suspension) => self.write_suspension(),
            None => {}
        }
    }

    /// All ranks are halted: asks their agents for reports. `about` is the dispatcher's part.
    pub(super) fn suspend_nodes(&mut self, about: Value) {
        let wave = self.coordinator.waves_in_files(0).first().copied();
        let (nodes, ends) = (self.agents.numbers(), self.states_of_ends(wave.unwrap_or(0)));
        self.suspension.about = Some(about);
        self.give_up_waiting();
        if let Some(files) = &mut self.suspension.files {
            files.gather(What::Suspension, nodes, ends);
        }
        self.agents.tell(&ToAgent::TellState);
    }

    fn write_suspension(&mut self) {
        let input = self.ledger.input.as_ref();
        let input = input.map(|input| (input.path().into(), input.length()));
        if let Some(about) = self.suspension.about.take() {
            self.write_down(about, input);
        }
    }

    pub(super) fn write_down(&mut self, about: Value, input: Option<(OsString, u64)>) {
        let input = input.map(|(path, length)| (PathBuf::from(path), length));
        let waves = self.coordinator.waves_in_files(0);
        let Some(files) = &mut self.suspension.files else {
            return;
        };
        let lacking = files.lacks_transit(&waves).into_iter();
        let transit = lacking.filter_map(|wave| Some((wave, self.images.transit.whole(wave)?)));
        let transit = transit.collect();
        if let Some(ended) = files.write(about, input, transit) {
            self.writing_ended(ended);
        }
    }

    /// Checks whether a record is complete.
    pub(super) fn mind_files(&mut self) {
        let (coordinator, is_ending) = (&self.coordinator, self.verdict.is_some());
        let counts = |what| match what {
            What::Wave { number, .. } => coordinator.waves_in_files(0).contains(&number),
            What::Suspension => !is_ending,
        };
        let files = self.suspension.files.as_mut();
        if let Some(ended) = files.and_then(|files| files.mind(counts)) {
            self.writing_ended(ended);
        }
    }

    fn writing_ended(&mut self, ended: Ended) {
        let Some(files) = &self.suspension.files else { return };
        let directory = files.path().to_path_buf();
        match ended {
            Ended::Written(What::Wave { number, oldest }, bytes) => {
                let stay: Vec<u64> = (oldest..=number).collect();
                self.suspension
                    .files
                    .iter_mut()
                    .for_each(|files| files.remove_transit(&stay));
                self.tell_record_ended(number, oldest, true);
                self.recorded(number, &directory, bytes);
            }
            Ended::Failed(What::Wave { number, oldest }, error) => {
                self.tell_record_ended(number, oldest, false);
                let reason = error.to_string();
                self.bus.tell(Event::WaveNotRecorded {
                    wave: number,
                    reason: &reason,
                });
            }
            Ended::Written(What::Suspension, bytes) => self.suspended(&directory, bytes),
            Ended::Failed(What::Suspension, error) => {
                self.not_suspended(&format!("{}: {error}", directory.display()));
            }
        }
    }

    fn tell_record_ended(&mut self, number: u64, oldest: u64, is_written: bool) {
        self.tell(ToAgent::RecordEnded {
            number,
            oldest,
            is_written,
        });
    }

    /// A node is lost: its agent's report will not come.
    pub(super) fn give_up_gathering(&mut self) {
        let given_up = self
            .suspension
            .files
            .as_mut()
            .and_then(|files| files.give_up_gathering());
        self.give_up_waiting();
        match given_up {
            Some(What::Wave { number, oldest }) => self.tell_record_ended(number, oldest, false),
            Some(What::Suspension) => self.not_suspended("a node is lost"),
            None => {}
        }
    }

    /// Sets the nodes, and the node of each rank.
    pub(super) fn place_ranks(&mut self, cluster: Option<&Cluster>) {
        let Some(cluster) = cluster else { return };
        for (node, host) in (0..).zip(&cluster.hosts) {
            self.coordinate(Fact::Up {
                node,
                slots: host.slots,
                spare: host.spare,
                rack: host.rack.clone(),
            });
        }
        let nodes = cluster.of_rank.clone();
        self.coordinate(Fact::Placed { nodes });
        let (replicas, parity) = (self.coordinator.plan().replicas, self.coordinator.plan().parity);
        let reason = match parity {
            Some(parity) => cluster.lacks_nodes_for(parity),
            None => cluster.lacks_room_for(replicas).filter(|_| replicas > 0),
        };
        if let Some(reason) = reason {
            self.bus.tell(Event::FewReplicas { reason: &reason });
        }
    }

    /// Compares the images that nodes have with the record. `names`: of the ranks' nodes at that time.
    ///
    /// # Errors
    /// There is no wave to go on from.
    pub(super) fn find_images(
        &self,
        ranks: Value,
        names: &[String],
        sights: &[Sight],
        is_shared: bool,
    ) -> Result<Found, StartError> {
        let states: Vec<RankState> = serde_json::from_value(ranks)?;
        let found = Found::of(&states, sights, is_shared, self.coordinator.protocol().logs());
        let newest = found.missing.iter().max_by_key(|(_, image, _)| *image);
        let Some((rank, image, file)) = newest.filter(|_| !found.has_wave() && self.waves_in_places().is_empty())
        else {
            return Ok(found);
        };
        let node = names
            .get(*rank)
            .map_or(String::new(), |name| format!(" of node {name}"));
        Err(StartError::Missing {
            rank: *rank,
            image: *image,
            file: self.suspension.directory.join(file),
            node,
        })
    }

    /// Gives each agent the recorded job, and its own plan of the nodes.
    pub(super) fn resume_on_nodes(
        &mut self,
        job: &Job,
        plans: &[Nodes],
        cluster: &Cluster,
        sights: &[Sight],
        (ranks, names): (Value, &[String]),
    ) -> Result<(), StartError> {
        let found = self.find_images(ranks.clone(), names, sights, job.image_files.shared)?;
        let in_places = self.waves_in_places();
        // What comes from a place, or can be made anew, is not lost.
        let is_lost = |(rank, image): (usize, u64)| !in_places.contains(&image) && !found.has(rank, image);
        let lost = found.missing.iter();
        for (rank, image, file) in lost.filter(|(rank, image, _)| is_lost((*rank, *image))) {
            let reason = format!("{file} is on none of these nodes");
            self.bus.tell(Event::ImageLost {
                rank: *rank,
                image: *image,
                reason: &reason,
            });
        }
        let input = self.ledger.input.as_ref().map(|input| PathBuf::from(input.path()));
        let read = self.suspension.files.as_mut().map(|files| files.read(input.as_deref()));
        read.transpose().map_err(StartError::NotResumed)?;
        for node in 0..self.agents.len() {
            let mut job = Box::new(job.clone());
            job.nodes = plans.get(node).cloned();
            let ranks = ranks.clone();
            // It leaves with what follows: much may have to be read before, and leases begin with it.
            self.agents.node(node).queue(&ToAgent::GoOn { job, ranks });
        }
        let waves = found.waves().into_iter().collect();
        let files = self.suspension.files.as_ref();
        let transit = files.map_or(Vec::new(), |files| files.have_transit(waves));
        let sets = match job.image_files.parity {
            Some(_) => found.sets,
            None => Vec::new(),
        };
        self.resumed(found.ranks, sets, transit, Some(cluster));
        Ok(())
    }
}

//! How long an answer about an image is waited for. A rank that is stopped, or whose copy waits for a file server, must not keep all
//! others standing still, nor the images that would come next.

use std::io;
use std::time::{Duration, Instant};

use resurgo_wire::control::ToDispatcher;
use resurgo_wire::image::{Datagram, Kind};

use super::{Agent, Work};
use crate::memory;

/// How long nobody may say anything about an image that is being taken. Ranks stop within milliseconds, or refuse after 2 s.
const LEAST: Duration = Duration::from_secs(10);
/// What comes to that for each GiB that the ranks hold: a fork takes some 20 ms.
const FOR_EACH_GIB: Duration = Duration::from_millis(100);

/// How long the ranks `ranks` may be silent while images are taken of them.
pub(super) fn with(work: &Work, ranks: &[usize]) -> Duration {
    let lives = ranks.iter().filter_map(|rank| work.ranks[*rank].life.as_ref());
    let held = memory::held_by(lives.map(|life| life.pid.as_raw()));
    LEAST + FOR_EACH_GIB * u32::try_from(held >> 30).unwrap_or(u32::MAX / 100)
}

fn reason(patience: Duration) -> String {
    format!(
        "it has not answered for {} s, as if it were stopped; the others go on",
        patience.as_secs()
    )
}

impl Work {
    /// When the silence about some image has lasted for too long.
    pub(super) fn patience_ends(&self) -> Option<Instant> {
        let waves = self.waves.iter().filter(|waves| waves.current.is_some());
        let of_waves = waves.map(|waves| waves.heard + waves.patience);
        let alone = self.ranks.iter().filter(|_| !self.has_waves());
        of_waves
            .chain(alone.filter_map(|rank| rank.images.patience_ends()))
            .min()
    }

    /// A unit whose wave has waited for too long, or a rank of which a single image has been: that rank, and how long.
    fn silent(&self, now: Instant) -> Option<(usize, Duration)> {
        let in_waves = self.waves.iter().find_map(|waves| {
            let (wave, _) = waves.current.as_ref()?;
            let place = wave.awaited()? as usize;
            (waves.heard + waves.patience <= now).then_some((waves.members[place], waves.patience))
        });
        let mut ranks = self.ranks.iter().enumerate().filter(|_| !self.has_waves());
        let alone = || {
            ranks.find_map(|(rank, this)| {
                let ends = this.images.patience_ends().filter(|ends| *ends <= now)?;
                Some((rank, LEAST + now.saturating_duration_since(ends)))
            })
        };
        in_waves.or_else(alone)
    }
}

impl Agent {
    /// Gives up images that nobody has said anything about for long. What is said later comes too late.
    pub(super) fn mind_silence(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let work = &mut self.work;
        if work.patience_ends().is_none_or(|ends| ends > now) {
            return Ok(());
        }
        let Some((rank, patience)) = work.silent(now) else {
            return Ok(());
        };
        let reason = reason(patience);
        if work.has_waves() {
            return self.drop_wave(rank, &reason);
        }
        let images = &mut work.ranks[rank].images;
        let number = images.asked();
        images.drop_candidate();
        work.tell(rank, &Datagram::new(Kind::Abandon, number, 0, 0));
        self.send(&ToDispatcher::NotCheckpointed { rank, reason })
    }
}

//! What a job should do about failures: the expected time to solution of each way, from measured figures. The models are
//! described in docs/internals/advice.md.

pub mod model;
#[cfg(test)]
mod tests;

use crate::survival::{Placement, chance};
use model::{Logging, Waves, from_the_beginning, least};

/// More replicas are not examined.
const MOST_REPLICAS: u32 = 4;
/// Each so many waves one goes to the place.
const PERIODS: [u32; 16] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256];
/// A way that saves less than this part of the time is not worth its effort.
const WORTH: f64 = 0.002;
/// Copies to other nodes take at most half of a link, and at most so many bytes a second.
const FASTEST_COPY: f64 = 200e6;

/// What is known of a job and its machines. Seconds, and bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    pub nodes: u32,
    /// Without failures and images.
    pub work: f64,
    /// The job's time between failures. Each takes so many nodes at once, or with 0 a process.
    pub mtbf: f64,
    pub at_once: u32,
    /// Between losses of all nodes at once; infinite: that does not happen.
    pub outage: f64,
    /// Of one node, that one wave copies.
    pub image: f64,
    /// The job stands still for a wave, or for one image of each rank.
    pub cost: f64,
    /// From a failure until ranks run again, besides the time in which images come over the network.
    pub restart: f64,
    /// Bytes a second of one node to another.
    pub link: f64,
    /// Bytes a second of a place for all nodes together; 0: there is none.
    pub place: f64,
    /// The part of the time that the program loses while images travel.
    pub slowdown: f64,
    /// The part of the time that message logging costs.
    pub logging: f64,
    /// Bytes a second that a rank logs, and the room for them.
    pub log_growth: f64,
    pub log_room: f64,
    /// A replay takes this part of the time of the first run.
    pub replay: f64,
}

/// How ranks come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Means {
    /// The job begins again.
    Nothing,
    /// All return to a wave.
    Waves,
    /// Failed ranks repeat what they did since their images.
    Logging,
}

/// One way, with the times that are best for it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Choice {
    pub means: Means,
    /// Of images on other nodes.
    pub replicas: u32,
    /// Every so many waves one goes to the place; 0: none.
    pub place_every: u32,
    /// Between images.
    pub interval: f64,
    /// Time to solution.
    pub expected: f64,
    /// The chance that images survive a failure.
    pub survives: f64,
}

impl Figures {
    /// Time until the images of a wave are on so many other nodes; each sends and receives as many.
    fn sending(&self, replicas: u32) -> f64 {
        f64::from(replicas) * self.image / (self.link / 2.0).min(FASTEST_COPY)
    }

    /// Time until the images of all nodes are in the place, or back.
    fn storing(&self) -> f64 {
        f64::from(self.nodes) * self.image / self.place.min(self.link * f64::from(self.nodes))
    }

    /// What sending costs the program.
    fn disturbance(&self, time: f64) -> f64 {
        self.slowdown * time
    }

    /// The chance that images with so many replicas survive a failure, and others before they are all copied again.
    fn survives(&self, replicas: u32) -> f64 {
        if self.at_once == 0 {
            return 1.0;
        }
        let window = (self.restart + self.sending(replicas)) / self.mtbf;
        let placement = Placement::Random { replicas };
        let mut of_others = (-window).exp();
        let mut survives = 0.0;
        for others in 0..=32 {
            survives += of_others * chance(self.nodes, (others + 1) * self.at_once, placement);
            of_others *= window / f64::from(others + 1);
        }
        survives
    }

    fn begins_again(&self, time: f64, fatal: f64) -> f64 {
        from_the_beginning(time, fatal, self.restart)
    }

    fn nothing(&self) -> Choice {
        Choice {
            means: Means::Nothing,
            replicas: 0,
            place_every: 0,
            interval: f64::INFINITY,
            expected: self.begins_again(self.work, 1.0 / self.mtbf + 1.0 / self.outage),
            survives: 0.0,
        }
    }

    /// Failures from which images on other nodes bring the job back, and those that take these, too.
    fn rates(&self, survives: f64) -> [f64; 2] {
        let rate = 1.0 / self.mtbf;
        [rate * survives, rate * (1.0 - survives) + 1.0 / self.outage]
    }

    /// A failure soon after a wave finds it incomplete, and returns to the one before. In the mean over all moments this
    /// loses the time of sending once more.
    fn returns(&self, sending: f64) -> f64 {
        let fetching = if self.at_once == 0 { 0.0 } else { self.image / self.link };
        self.restart + fetching + sending
    }

    fn waves(&self, replicas: u32) -> Choice {
        let (sending, survives) = (self.sending(replicas), self.survives(replicas));
        let [rate, fatal] = self.rates(survives);
        let expected = |interval: f64| {
            let waves = Waves {
                interval,
                cost: self.cost + self.disturbance(sending),
                period: 1,
                more: 0.0,
                rates: [rate, 0.0],
                returns: [self.returns(sending), 0.0],
            };
            self.begins_again(waves.time(self.work), fatal)
        };
        let (interval, expected) = least(sending.max(self.shortest()), self.work, expected);
        Choice {
            means: Means::Waves,
            replicas,
            place_every: 0,
            interval,
            expected,
            survives,
        }
    }

    fn logged(&self, replicas: u32) -> Choice {
        let (sending, survives) = (self.sending(replicas), self.survives(replicas));
        let [rate, fatal] = self.rates(survives);
        let expected = |interval: f64| {
            let logging = Logging {
                interval,
                cost: self.cost + self.disturbance(sending),
                rate,
                restart: self.returns(self.replay * sending),
                replay: self.replay,
            };
            let time = logging.time(self.work * (1.0 + self.logging));
            self.begins_again(time, fatal)
        };
        // Images come before a log is full.
        let longest = (self.log_room / self.log_growth).min(self.work);
        let (interval, expected) = least(sending.max(self.shortest()), longest, expected);
        Choice {
            means: Means::Logging,
            replicas,
            place_every: 0,
            interval,
            expected,
            survives,
        }
    }

    /// Waves with so many replicas, and each so many in the place; without replicas every failure needs the place.
    fn levels(&self, replicas: u32, period: u32) -> Choice {
        let (sending, storing) = (self.sending(replicas), self.storing());
        let survives = match (replicas, self.at_once) {
            (0, 1..) => 0.0,
            _ => self.survives(replicas),
        };
        let expected = |interval: f64| {
            let waves = Waves {
                interval,
                cost: self.cost + self.disturbance(sending),
                period,
                more: self.disturbance(storing),
                rates: self.rates(survives),
                returns: [self.returns(sending), self.restart + 2.0 * storing],
            };
            waves.time(self.work)
        };
        let shortest = sending.max(storing / f64::from(period)).max(self.shortest());
        let (interval, expected) = least(shortest, self.work, expected);
        Choice {
            means: Means::Waves,
            replicas,
            place_every: period,
            interval,
            expected,
            survives,
        }
    }

    fn shortest(&self) -> f64 {
        (self.work * 1e-6).max(0.01)
    }

    /// All ways, the best first. A simpler one comes before one that is hardly better.
    pub fn choices(&self) -> Vec<Choice> {
        let mut choices = vec![self.nothing()];
        let replicas: Vec<u32> = match self.at_once {
            0 => vec![0],
            _ => (1..=MOST_REPLICAS.min(self.nodes.saturating_sub(1))).collect(),
        };
        for &replicas in &replicas {
            choices.push(self.waves(replicas));
            choices.push(self.logged(replicas));
        }
        if self.place > 0.0 {
            if self.at_once > 0 {
                choices.push(self.levels(0, 1));
            }
            for &replicas in &replicas {
                let all = PERIODS.iter().map(|period| self.levels(replicas, *period));
                choices.extend(all.min_by(|one, other| one.expected.total_cmp(&other.expected)));
            }
        }
        choices.sort_by(|one, other| one.expected.total_cmp(&other.expected));
        let limit = choices[0].expected * (1.0 + WORTH);
        let effort = |choice: &Choice| {
            let means = match choice.means {
                Means::Nothing => 0,
                Means::Waves => 1,
                Means::Logging => 2,
            };
            (choice.place_every.min(1), choice.replicas, means)
        };
        let near = choices.iter().take_while(|choice| choice.expected <= limit).count();
        choices[..near].sort_by_key(effort);
        choices
    }

    /// Why the first of these is the best: in one sentence without its end.
    pub fn reason(&self, choices: &[Choice]) -> String {
        let best = choices[0];
        if best.expected.is_infinite() {
            return "failures come faster than the job returns from them, with every protocol".to_string();
        }
        let more = |other: Option<&Choice>| other.map(|other| 100.0 * (other.expected / best.expected - 1.0));
        let of = |means: Means| choices.iter().find(|choice| choice.means == means);
        let told = |percent: f64| match percent {
            percent if percent > 1000.0 => "many times as long".to_string(),
            percent if percent < 0.05 => "hardly longer".to_string(),
            percent => format!("{percent:.1} % longer"),
        };
        match best.means {
            Means::Nothing => format!(
                "the job is short for its failures: in the mean it fails {:.2} times, and waves would take {}",
                self.work / self.mtbf,
                more(of(Means::Waves)).map_or("longer".into(), told)
            ),
            Means::Waves => {
                let logging = more(of(Means::Logging)).map_or("longer".into(), told);
                let images = match (best.replicas, best.place_every) {
                    (0, 0) => String::new(),
                    (0, _) => "; nodes have no images of others".to_string(),
                    (replicas, place) => self.reason_for_images(choices, replicas, place),
                };
                let lost = best.interval / 2.0;
                let digits = usize::from(lost < 10.0);
                format!(
                    "a return of all ranks loses {lost:.digits$} s of work in the mean, and message logging would take \
                     {logging}{images}"
                )
            }
            Means::Logging => {
                let waves = more(of(Means::Waves)).map_or("longer".into(), told);
                format!(
                    "only the failed ranks repeat their work; a return of all would take {waves}, and logging costs {:.1} %{}",
                    100.0 * self.logging,
                    self.reason_for_images(choices, best.replicas, best.place_every)
                )
            }
        }
    }

    fn reason_for_images(&self, choices: &[Choice], replicas: u32, place: u32) -> String {
        if replicas == 0 {
            return String::new();
        }
        let best = choices[0];
        let is_alike = |choice: &&Choice| choice.means == best.means && choice.place_every.min(1) == place.min(1);
        let fewer = choices
            .iter()
            .filter(is_alike)
            .find(|choice| choice.replicas + 1 == replicas);
        let survives = format!("{} of images survive a failure", percent(best.survives));
        match fewer {
            Some(fewer) if fewer.replicas > 0 => format!(
                "; with {replicas} replicas {survives}, with {} only {}",
                fewer.replicas,
                percent(fewer.survives)
            ),
            _ => format!("; with one replica {survives}"),
        }
    }
}

fn percent(part: f64) -> String {
    match part {
        part if part > 0.99999 => "practically all".to_string(),
        part => format!("{:.4} %", 100.0 * part),
    }
}

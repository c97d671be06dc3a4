//! The course of a rank: what it did at which time. All times are nanoseconds of the trace's clock.

use crate::reader::Read;
use crate::times::Times;

/// What a rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Computing,
    /// In a call of MPI, and it does not wait.
    InMpi,
    Waiting,
    /// Repeats what former lives did.
    Replaying,
    /// Stands still for an image.
    Image,
    /// A life has failed, and no other has begun.
    Dead,
    /// It lives, but its records are not in the trace.
    Unrecorded,
}

impl State {
    pub const ALL: [State; 7] = [
        State::Computing,
        State::InMpi,
        State::Waiting,
        State::Replaying,
        State::Image,
        State::Dead,
        State::Unrecorded,
    ];
}

/// A process of the rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    pub number: u64,
    pub begin: u64,
    pub end: u64,
    /// Where there are several.
    pub node: Option<String>,
}

/// An image of the rank, or a wave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    pub number: u64,
    pub begin: u64,
    pub end: u64,
}

/// Something that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    pub at: u64,
    /// A node's name, or how a rank ended.
    pub what: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Course {
    pub lives: Vec<Life>,
    pub failures: Vec<Loss>,
    pub images: Vec<Image>,
    pub(crate) alive: Times,
    pub(crate) replays: Times,
    /// Calls of MPI outside of replays.
    pub(crate) calls: Times,
    pub(crate) waits: Times,
    unrecorded: Times,
    dead: Times,
}

impl Course {
    /// `spans`: of the rank, by time. `late`: when it waited for what had not been sent. `last`: the trace's end.
    pub(crate) fn of(spans: &[&Read], late: &Times, lost: &[Loss], last: u64) -> Course {
        let all = |category: &str, track: &str| {
            let those = spans
                .iter()
                .filter(|span| span.category == category && span.track == track);
            Times::of(those.filter_map(|span| Some((span.begin, span.end?))))
        };
        let mut course = Course {
            lives: lives(spans),
            failures: failures(spans),
            images: images(spans.iter().copied(), "images", "image"),
            replays: all("replay", "replay"),
            ..Course::default()
        };
        course.calls = all("mpi", "MPI").without(&course.replays);
        course.waits = all("wait", "MPI").and(late).without(&course.replays);
        let mut unrecorded = gaps(spans);
        for life in &mut course.lives {
            unrecorded.extend(end_with_node(life, lost, spans));
        }
        course.alive = Times::of(course.lives.iter().map(|life| (life.begin, life.end)));
        course.dead = course.deaths(lost, last);
        let gone = course.alive.without(&Times::of(unrecorded.into_iter()));
        course.unrecorded = course.alive.without(&gone).without(&course.busy());
        course
    }

    fn busy(&self) -> Times {
        self.replays.and(&self.calls).and(&self.waits)
    }

    fn deaths(&self, lost: &[Loss], last: u64) -> Times {
        let next = self.lives.iter().skip(1).map(|next| next.begin);
        let between = self.lives.iter().zip(next).map(|(life, next)| (life.end, next));
        let at_last = self.lives.last().filter(|life| {
            let of_node = lost.iter().any(|loss| is_of(loss, life) && loss.at == life.end);
            of_node || self.failures.iter().any(|failure| failure.at >= life.end)
        });
        Times::of(between.chain(at_last.map(|life| (life.end, last))))
    }

    /// When it did that, whether or not it then stood still for an image.
    pub fn times(&self, state: State) -> Times {
        match state {
            State::Computing => self.alive.without(&self.busy()).without(&self.unrecorded),
            State::InMpi => self.calls.without(&self.waits),
            State::Waiting => self.waits.clone(),
            State::Replaying => self.replays.clone(),
            State::Image => Times::of(self.images.iter().map(|image| (image.begin, image.end))),
            State::Dead => self.dead.clone(),
            State::Unrecorded => self.unrecorded.clone(),
        }
    }

    /// What it did for most of each of `count` equal parts of the time; none: there was no process yet, or no more.
    /// Each death and replay has at least one part.
    pub fn columns(&self, begin: u64, end: u64, count: usize) -> Vec<Option<State>> {
        let columns = Columns { begin, end, count };
        let images = self.times(State::Image);
        let mut shares = vec![[0; State::ALL.len()]; count];
        for (at, state) in State::ALL.into_iter().enumerate() {
            let times = match state {
                State::Image => images.clone(),
                state => self.times(state).without(&images),
            };
            columns.add(&times, |column, time| shares[column][at] += time);
        }
        let most = |shares: &[u64; State::ALL.len()]| {
            let all = shares.iter().zip(State::ALL).filter(|(share, _)| **share > 0);
            all.max_by_key(|(share, _)| **share).map(|(_, state)| state)
        };
        let mut most: Vec<Option<State>> = shares.iter().map(most).collect();
        for state in [State::Dead, State::Replaying] {
            for (begin, end) in self.times(state).intervals() {
                let (first, last) = (columns.of(begin), columns.of(end - 1));
                if !most[first..=last].contains(&Some(state)) {
                    most[usize::midpoint(first, last)] = Some(state);
                }
            }
        }
        most
    }
}

/// Equal parts of a time.
struct Columns {
    begin: u64,
    end: u64,
    count: usize,
}

impl Columns {
    /// The one that has this moment.
    fn of(&self, at: u64) -> usize {
        let past = u128::from(at.saturating_sub(self.begin));
        let column = past * self.count as u128 / u128::from((self.end - self.begin).max(1));
        (column as usize).min(self.count.saturating_sub(1))
    }

    /// Adds what of `times` is in each.
    fn add(&self, times: &Times, mut to: impl FnMut(usize, u64)) {
        let whole = u128::from(self.end - self.begin);
        for (begin, end) in times.intervals() {
            let mut from = begin;
            for column in self.of(begin)..=self.of(end - 1) {
                // The first moment of the next one.
                let next = (whole * (column as u128 + 1)).div_ceil(self.count as u128) as u64 + self.begin;
                let until = if column + 1 == self.count { end } else { next.min(end) };
                to(column, until.saturating_sub(from));
                from = until.max(from);
            }
        }
    }
}

fn lives(spans: &[&Read]) -> Vec<Life> {
    let on_lives: Vec<&Read> = spans.iter().filter(|span| span.track == "lives").copied().collect();
    let node = |life: u64| {
        let started = |span: &&&Read| span.name == "started" && span.number("life") == Some(life);
        let node = on_lives.iter().find(started)?.text("node")?;
        Some(node.to_string())
    };
    let lives = on_lives.iter().filter(|span| span.category == "life");
    let lives = lives.filter_map(|span| {
        let number = span.number("life").unwrap_or(0);
        Some(Life {
            number,
            begin: span.begin,
            end: span.end?,
            node: node(number),
        })
    });
    lives.collect()
}

fn failures(spans: &[&Read]) -> Vec<Loss> {
    let those = spans
        .iter()
        .filter(|span| span.track == "lives" && span.category == "failure");
    those
        .map(|span| Loss {
            at: span.begin,
            what: span.text("cause").unwrap_or(&span.name).to_string(),
        })
        .collect()
}

/// What is on a track of images or waves; `fact` has the number of each.
pub(crate) fn images<'a>(spans: impl Iterator<Item = &'a Read>, track: &str, fact: &str) -> Vec<Image> {
    let those = spans.filter(|span| span.track == track);
    let images = those.filter_map(|span| {
        Some(Image {
            number: span.number(fact).unwrap_or(0),
            begin: span.begin,
            end: span.end?,
        })
    });
    images.collect()
}

/// The times before records that follow missing ones.
fn gaps(spans: &[&Read]) -> Vec<(u64, u64)> {
    let missing = spans.iter().filter(|span| span.category == "missing");
    missing
        .map(|span| (recorded_until(spans, span.begin), span.begin))
        .collect()
}

/// The end of the last record that was over then.
fn recorded_until(spans: &[&Read], then: u64) -> u64 {
    let those = spans
        .iter()
        .filter(|span| span.track == "MPI" && span.category != "missing");
    let ends = those.map(|span| span.end.unwrap_or(span.begin));
    ends.filter(|end| *end < then).max().unwrap_or(0)
}

fn is_of(loss: &Loss, life: &Life) -> bool {
    life.node.as_ref() == Some(&loss.what)
}

/// A life ends with its node, whenever that was told. Returns the time before, if the node's last records are missing.
fn end_with_node(life: &mut Life, lost: &[Loss], spans: &[&Read]) -> Option<(u64, u64)> {
    let loss = lost
        .iter()
        .find(|loss| is_of(loss, life) && (life.begin..=life.end).contains(&loss.at))?;
    life.end = loss.at;
    Some((recorded_until(spans, loss.at).max(life.begin), loss.at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reader::span_of_rank as span;
    use crate::span::Fact;

    fn course(spans: &[Read], lost: &[Loss]) -> Course {
        Course::of(&spans.iter().collect::<Vec<_>>(), &Times::default(), lost, 100)
    }

    fn life(number: i64, begin: u64, end: u64) -> Read {
        let mut life = span(0, "lives", "life", "life", begin, Some(end));
        life.facts.insert("life".into(), Fact::Number(number));
        life
    }

    /// A letter for each state.
    fn letters(columns: &[Option<State>]) -> String {
        let letters = columns.iter().map(|state| match state {
            None => '.',
            Some(State::Computing) => 'c',
            Some(State::InMpi) => 'm',
            Some(State::Waiting) => 'w',
            Some(State::Replaying) => 'r',
            Some(State::Image) => 'i',
            Some(State::Dead) => 'd',
            Some(State::Unrecorded) => 'u',
        });
        letters.collect()
    }

    #[test]
    fn a_column_has_what_lasted_longest() {
        let spans = [
            life(1, 10, 40),
            span(0, "MPI", "mpi", "MPI_Recv", 16, Some(30)),
            span(0, "MPI", "wait", "asleep", 20, Some(30)),
            span(0, "lives", "failure", "failed", 40, None),
            life(2, 60, 90),
            span(0, "replay", "replay", "replay", 60, Some(72)),
            span(0, "images", "image", "image 1", 79, Some(86)),
        ];
        let course = course(&spans, &[]);
        assert_eq!(letters(&course.columns(0, 100, 10)), ".cwcddrci.");
        assert_eq!(letters(&course.columns(0, 100, 20)), "..cmwwccddddrrccic..");
        assert_eq!(course.failures.len(), 1);
    }

    #[test]
    fn short_deaths_and_replays_are_seen() {
        let spans = [
            life(1, 0, 44),
            life(2, 45, 100),
            span(0, "replay", "replay", "replay", 71, Some(72)),
        ];
        assert_eq!(letters(&course(&spans, &[]).columns(0, 100, 10)), "ccccdccrcc");
        let failed = [life(1, 0, 44), span(0, "lives", "failure", "failed", 44, None)];
        assert_eq!(letters(&course(&failed, &[]).columns(0, 100, 10)), "ccccdddddd");
        assert_eq!(letters(&course(&[], &[]).columns(0, 0, 3)), "...");
    }

    #[test]
    fn times_without_records_are_not_of_computing() {
        let spans = [
            life(1, 0, 100),
            span(0, "MPI", "mpi", "MPI_Send", 32, Some(60)),
            span(0, "MPI", "missing", "5 records are missing", 40, None),
            span(0, "MPI", "mpi", "MPI_Send", 60, Some(65)),
            span(0, "MPI", "missing", "5 records are missing", 80, None),
        ];
        assert_eq!(letters(&course(&spans, &[]).columns(0, 100, 10)), "uuummmuucc");
        let first = [
            life(1, 0, 100),
            span(0, "MPI", "missing", "5 records are missing", 40, None),
        ];
        let course = course(&first, &[]);
        assert_eq!(
            (
                course.times(State::Unrecorded).length(),
                course.times(State::Computing).length()
            ),
            (40, 60)
        );
    }

    #[test]
    fn a_life_ends_with_its_node() {
        let mut started = span(0, "lives", "event", "started", 0, None);
        started.facts.insert("life".into(), Fact::Number(1));
        started.facts.insert("node".into(), Fact::Text("n1".into()));
        let spans = [
            life(1, 0, 70),
            started,
            span(0, "MPI", "mpi", "MPI_Send", 10, Some(20)),
            life(2, 70, 100),
        ];
        let lost = Loss {
            at: 40,
            what: "n1".into(),
        };
        let course = course(&spans, &[lost]);
        assert_eq!(letters(&course.columns(0, 100, 10)), "cmuudddccc");
        assert_eq!(course.lives[0].node.as_deref(), Some("n1"));
    }
}

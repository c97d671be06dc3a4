//! A picture of what a trace tells: a line of time for each rank, and below it the shares of its time.

use std::fmt::Write;

use resurgo_runtime::units::{counted, one_line};
use resurgo_trace::course::{Course, State};
use resurgo_trace::report::{OfRank, Report};

use super::svg::{Attribute, Svg};
use super::words::{self, seconds, time};

const STYLE: &str = include_str!("picture.css");
/// The width of the lines, in units of the picture.
const WIDTH: usize = 1000;
const RIGHT: usize = 40;
/// About the width of a letter.
const LETTER: usize = 6;
/// The most letters beside a line.
const LONGEST: usize = 36;
/// With more ranks the lines are thinner, and their parts longer.
const MANY: usize = 64;
/// Parts that are so wide say what they are.
const WIDE: usize = 8;
/// The most images in the picture that each say which they are.
const MOST_IMAGES: usize = 2000;
/// The most lost nodes whose names are beside their lines.
const MOST_NAMES: usize = 6;

/// The states that are shares of the time of a rank's processes.
const SHARES: [State; 5] = [
    State::Computing,
    State::InMpi,
    State::Waiting,
    State::Replaying,
    State::Unrecorded,
];

/// As the picture's style names it.
fn class(state: State) -> &'static str {
    match state {
        State::Computing => "computing",
        State::InMpi => "in-mpi",
        State::Waiting => "waiting",
        State::Replaying => "replay",
        State::Image => "image",
        State::Dead => "dead",
        State::Unrecorded => "unrecorded",
    }
}

fn name(state: State) -> &'static str {
    match state {
        State::Computing => "computing",
        State::InMpi => "in MPI",
        State::Waiting => "waiting",
        State::Replaying => "replay (repeated work)",
        State::Image => "stands still for an image",
        State::Dead => "dead",
        State::Unrecorded => "no records",
    }
}

/// The picture. `title`: of what.
pub fn of(report: &Report, title: &str) -> String {
    Picture::of(report).drawn(&one_line(title))
}

struct Picture<'a> {
    report: &'a Report,
    svg: Svg,
    /// Where the lines begin.
    left: usize,
    /// From a line to the next.
    pitch: usize,
    /// The width of the parts of a line.
    part: usize,
}

impl<'a> Picture<'a> {
    fn of(report: &'a Report) -> Picture<'a> {
        let ranks = report.ranks.len();
        let labels = report.ranks.iter().map(|(rank, of)| label(*rank, of));
        let longest = labels.map(|label| label.chars().count()).max().unwrap_or(0);
        Picture {
            report,
            svg: Svg::default(),
            left: 36 + longest * LETTER,
            pitch: if ranks > MANY { 10 } else { 18 },
            part: ranks.div_ceil(MANY).clamp(1, WIDE),
        }
    }

    fn drawn(mut self, title: &str) -> String {
        let rows = self.report.ranks.len() * self.pitch;
        let legend = self.legend();
        let lines = 56 + legend.last().map_or(0, |(_, y, _)| *y) + 36;
        let shares = lines + rows + 70;
        let (width, height) = (self.left + WIDTH + RIGHT, shares + rows + 40);
        let size = format!("0 0 {width} {height}");
        self.svg.open(
            "svg",
            &[
                ("xmlns", &"http://www.w3.org/2000/svg"),
                ("width", &width),
                ("height", &height),
                ("viewBox", &size),
                ("role", &"img"),
                ("aria-label", &title),
            ],
        );
        self.svg.holds("style", &[], STYLE);
        self.svg
            .leaf("rect", &[("class", &"back"), ("width", &width), ("height", &height)]);
        let ranks = counted(self.report.ranks.len() as u64, "rank", "ranks");
        let head = format!("{title}: {} of {ranks}", time(self.report.total));
        self.text(24, 24, "title", &head);
        self.draw_legend(&legend, 48);
        self.draw_lines(lines, rows);
        self.text(24, shares - 14, "title", "Shares of the time of each rank's processes");
        self.draw_shares(shares, rows);
        self.svg.close();
        self.svg.into_text()
    }

    fn text(&mut self, x: usize, y: usize, class: &str, text: &str) {
        self.svg.holds("text", &[("x", &x), ("y", &y), ("class", &class)], text);
    }

    fn number(&mut self, x: usize, y: usize, text: &str) {
        let attributes: [Attribute; 4] = [("x", &x), ("y", &y), ("class", &"number"), ("text-anchor", &"middle")];
        self.svg.holds("text", &attributes, text);
    }

    /// What is to be explained: its place, and its name.
    fn legend(&self) -> Vec<(usize, usize, Sign)> {
        let (mut x, mut y, mut legend) = (24, 0, Vec::new());
        for sign in Sign::all() {
            let width = 46 + sign.name().len() * LETTER;
            if x + width > self.left + WIDTH + RIGHT {
                (x, y) = (24, y + 20);
            }
            legend.push((x, y, sign));
            x += width;
        }
        legend
    }

    fn draw_legend(&mut self, legend: &[(usize, usize, Sign)], top: usize) {
        for (x, y, sign) in legend {
            let (x, y) = (*x, top + y);
            let place = format!("translate({} {})", x + 10, y);
            self.svg.open("g", &[("class", &"legend"), ("transform", &place)]);
            match sign {
                Sign::State(state) => self.svg.leaf(
                    "path",
                    &[("class", &class(*state)), ("d", &"M-10 0h20"), ("stroke-width", &10)],
                ),
                Sign::Mark(mark) => self
                    .svg
                    .leaf("path", &[("class", &mark.class()), ("d", &mark.at(0, 3))]),
            }
            self.svg.close();
            self.text(x + 26, y + 4, "name", sign.name());
        }
    }

    /// The place of a moment in a line.
    fn x(&self, at: u64) -> usize {
        let past = u128::from(at.saturating_sub(self.report.begin));
        let x = past * WIDTH as u128 / u128::from(self.report.total.max(1));
        (x as usize).min(WIDTH)
    }

    fn draw_lines(&mut self, top: usize, rows: usize) {
        let report = self.report;
        let step = step(seconds(report.total));
        let decimals = (-step.log10().floor()).max(0.0) as usize;
        let mut tick = 0.0;
        while tick <= seconds(report.total) {
            let x = self.left + self.x(report.begin + (tick * 1e9) as u64);
            self.grid(x, top, rows);
            self.number(x, top + rows + 18, &format!("{tick:.decimals$} s"));
            tick += step;
        }
        self.draw_waves(top, rows);
        let images: usize = report.ranks.values().map(|of| of.course.images.len()).sum();
        for (row, (rank, of)) in report.ranks.iter().enumerate() {
            let y = top + row * self.pitch + self.pitch / 2;
            self.label(*rank, of, y);
            let (id, place) = (format!("rank-{rank}"), format!("translate({} {y})", self.left));
            self.svg.open("g", &[("id", &id), ("transform", &place)]);
            self.draw_states(*rank, &of.course);
            self.draw_lives(*rank, &of.course);
            self.draw_images(*rank, &of.course, images <= MOST_IMAGES);
            self.draw_failures(*rank, &of.course);
            self.svg.close();
        }
        for (at, loss) in report.lost_nodes.iter().enumerate() {
            let x = self.left + self.x(loss.at);
            let title = format!("node {} lost at {}", loss.what, time(loss.at - report.begin));
            let d = format!("M{x} {}v{}", top - 14, rows + 18);
            self.svg.titled("path", &[("class", &"node-lost"), ("d", &d)], &title);
            if at < MOST_NAMES {
                self.number(x, top - 18, &one_line(&format!("{} lost", loss.what)));
            }
        }
    }

    fn draw_waves(&mut self, top: usize, rows: usize) {
        let report = self.report;
        let mut last = None;
        for wave in &report.waves {
            let x = self.left + self.x(wave.end);
            // One is enough of those at one place.
            if last.replace(x) == Some(x) {
                continue;
            }
            let (at, took) = (seconds(wave.end - report.begin), time(wave.end - wave.begin));
            let title = format!("wave {} complete at {at:.3} s, after {took}", wave.number);
            let d = format!("M{} {}h6l-3 5zm3 5v{}", x - 3, top - 9, rows + 4);
            self.svg.titled("path", &[("class", &"wave"), ("d", &d)], &title);
        }
    }

    fn grid(&mut self, x: usize, top: usize, rows: usize) {
        let d = format!("M{x} {top}v{}", rows + 4);
        self.svg.leaf("path", &[("class", &"grid"), ("d", &d)]);
    }

    fn label(&mut self, rank: usize, of: &OfRank, y: usize) {
        let (class, text) = (if self.pitch < 12 { "small" } else { "label" }, label(rank, of));
        self.text(24, y + 4, class, &text);
    }

    fn draw_states(&mut self, rank: usize, course: &Course) {
        let Report { begin, total, .. } = *self.report;
        let columns = course.columns(begin, begin + total, WIDTH / self.part);
        let mut narrow = State::ALL.map(|_| String::new());
        let (thickness, mut from) = (self.pitch - 7, 0);
        for run in columns.chunk_by(|one, next| one == next) {
            let (x, width) = (from * self.part, run.len() * self.part);
            from += run.len();
            let Some(state) = run[0] else { continue };
            let d = format!("M{x} 0h{width}");
            if width < WIDE.max(self.part * 2) {
                let at = State::ALL.iter().position(|other| *other == state).unwrap_or(0);
                narrow[at] += &d;
                continue;
            }
            let [since, until] = [x, x + width].map(|x| seconds(total) * x as f64 / WIDTH as f64);
            let title = format!("rank {rank}: mostly {}, {since:.3} s to {until:.3} s", name(state));
            let attributes: [Attribute; 3] = [("class", &class(state)), ("d", &d), ("stroke-width", &thickness)];
            self.svg.titled("path", &attributes, &title);
        }
        for (state, d) in State::ALL.into_iter().zip(narrow).filter(|(_, d)| !d.is_empty()) {
            let title = format!(
                "rank {rank}: {}, {} in all",
                name(state),
                time(course.times(state).length())
            );
            let attributes: [Attribute; 3] = [("class", &class(state)), ("d", &d), ("stroke-width", &thickness)];
            self.svg.titled("path", &attributes, &title);
        }
    }

    /// A line below: where it ends, no process is.
    fn draw_lives(&mut self, rank: usize, course: &Course) {
        for life in &course.lives {
            let (x, end) = (self.x(life.begin), self.x(life.end));
            let mut title = format!("rank {rank}, life {}", life.number);
            if let Some(node) = &life.node {
                let _ = write!(title, " on {node}");
            }
            let [begin, until] = [life.begin, life.end].map(|at| seconds(at - self.report.begin));
            let _ = write!(title, ": {begin:.3} s to {until:.3} s");
            // A gap of one unit between two lives.
            let d = format!("M{x} {}h{}", self.pitch / 2 - 2, (end - x).saturating_sub(1).max(1));
            self.svg
                .titled("path", &[("class", &"life"), ("d", &d)], &one_line(&title));
        }
    }

    fn draw_images(&mut self, rank: usize, course: &Course, each: bool) {
        let mark = Mark::Image;
        let mut places: Vec<usize> = course.images.iter().map(|image| self.x(image.end)).collect();
        if each {
            for (image, x) in course.images.iter().zip(places) {
                let (at, still) = (seconds(image.end - self.report.begin), image.end - image.begin);
                let title = format!(
                    "rank {rank}: image {} at {at:.3} s, still for {}",
                    image.number,
                    time(still)
                );
                self.mark(mark, x, &title);
            }
            return;
        }
        places.dedup();
        let d: String = places.iter().map(|x| mark.at(*x, self.height())).collect();
        if !d.is_empty() {
            let title = format!(
                "rank {rank}: {}",
                counted(course.images.len() as u64, "image", "images")
            );
            self.svg.titled("path", &[("class", &mark.class()), ("d", &d)], &title);
        }
    }

    fn draw_failures(&mut self, rank: usize, course: &Course) {
        let begin = self.report.begin;
        for (former, life) in course.lives.iter().zip(course.lives.iter().skip(1)) {
            let between = former.begin..=life.begin;
            if !course.failures.iter().any(|failure| between.contains(&failure.at)) {
                let at = time(life.begin - begin);
                let title = format!("rank {rank} begins again at {at}: life {}", life.number);
                self.mark(Mark::Again, self.x(life.begin), &title);
            }
        }
        for failure in &course.failures {
            let at = failure.at - begin;
            let known = self
                .report
                .failures
                .iter()
                .find(|known| (known.rank, known.at) == (rank, at));
            let title = match known {
                Some(known) => words::failure(known),
                None => format!("rank {rank} {} at {}", failure.what, time(at)),
            };
            self.mark(Mark::Failure, self.x(failure.at), &one_line(&title));
        }
    }

    /// Half the height of a line.
    fn height(&self) -> usize {
        self.pitch / 2 - 2
    }

    fn mark(&mut self, mark: Mark, x: usize, title: &str) {
        let d = mark.at(x, self.height());
        self.svg.titled("path", &[("class", &mark.class()), ("d", &d)], title);
    }

    fn draw_shares(&mut self, top: usize, rows: usize) {
        for percent in (0..=100).step_by(20) {
            let x = self.left + WIDTH * percent / 100;
            self.grid(x, top, rows);
            self.number(x, top + rows + 18, &format!("{percent} %"));
        }
        for (row, (rank, of)) in self.report.ranks.iter().enumerate() {
            let y = top + row * self.pitch + self.pitch / 2;
            self.label(*rank, of, y);
            let (id, place) = (format!("shares-{rank}"), format!("translate({} {y})", self.left));
            self.svg.open("g", &[("id", &id), ("transform", &place)]);
            let (whole, mut x) = (of.total.max(1) as f64, 0.0);
            for state in SHARES {
                let length = of.course.times(state).length();
                let share = length as f64 / whole;
                let width = (share * WIDTH as f64).min(WIDTH as f64 - x);
                if width > 0.0 {
                    let title = format!("rank {rank}: {} {}, {:.1} %", name(state), time(length), share * 100.0);
                    let (d, thickness) = (format!("M{x:.1} 0h{width:.1}"), self.pitch - 5);
                    let attributes: [Attribute; 3] =
                        [("class", &class(state)), ("d", &d), ("stroke-width", &thickness)];
                    self.svg.titled("path", &attributes, &title);
                }
                x += width;
            }
            self.svg.close();
        }
    }
}

/// A rank, and the nodes on which it lived.
fn label(rank: usize, of: &OfRank) -> String {
    let mut nodes: Vec<&str> = of.course.lives.iter().filter_map(|life| life.node.as_deref()).collect();
    nodes.dedup();
    let label = match nodes.is_empty() {
        true => format!("rank {rank}"),
        false => one_line(&format!("rank {rank} on {}", nodes.join(", "))),
    };
    match label.chars().count() > LONGEST {
        true => label.chars().take(LONGEST - 1).chain(['…']).collect(),
        false => label,
    }
}

/// From one number at the axis to the next, so that there are about ten.
fn step(total: f64) -> f64 {
    let about = (total / 10.0).max(1e-6);
    let power = 10f64.powf(about.log10().floor());
    let step = [1.0, 2.0, 5.0].into_iter().find(|step| step * power >= about);
    step.unwrap_or(10.0) * power
}

/// Something that happens at a moment.
#[derive(Debug, Clone, Copy)]
enum Mark {
    Image,
    Wave,
    Failure,
    /// A life begins although the one before had not failed by itself.
    Again,
    NodeLost,
}

impl Mark {
    fn class(self) -> &'static str {
        match self {
            Mark::Image => "shot",
            Mark::Wave => "wave",
            Mark::Failure => "failed",
            Mark::Again => "again",
            Mark::NodeLost => "node-lost",
        }
    }

    /// Around the middle of a line.
    fn shape(self) -> &'static str {
        match self {
            Mark::Image => "m-3 -4h6l-3 5z",
            Mark::Wave => "m-3 -7h6l-3 5zm3 5v9",
            Mark::Failure => "m-4 -4l8 8m0 -8l-8 8",
            Mark::Again => "m-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0z",
            Mark::NodeLost => "m0 -7v14",
        }
    }

    /// At this place of a line of which half has this height.
    fn at(self, x: usize, half: usize) -> String {
        let y = match self {
            Mark::Image => 3 - half as i64,
            _ => 0,
        };
        format!("M{x} {y}{}", self.shape())
    }
}

/// What the legend explains.
enum Sign {
    State(State),
    Mark(Mark),
}

impl Sign {
    fn all() -> impl Iterator<Item = Sign> {
        let marks = [Mark::Failure, Mark::Again, Mark::Image, Mark::Wave, Mark::NodeLost];
        State::ALL
            .into_iter()
            .map(Sign::State)
            .chain(marks.into_iter().map(Sign::Mark))
    }

    fn name(&self) -> &'static str {
        match self {
            Sign::State(state) => name(*state),
            Sign::Mark(Mark::Image) => "image",
            Sign::Mark(Mark::Wave) => "wave of images",
            Sign::Mark(Mark::Failure) => "failure",
            Sign::Mark(Mark::Again) => "begins again",
            Sign::Mark(Mark::NodeLost) => "node lost",
        }
    }
}

#[cfg(test)]
mod tests {
    use resurgo_trace::reader::Read;
    use resurgo_trace::{Fact, report::Failure};

    use super::*;

    fn span(rank: usize, track: &str, category: &str, name: &str, begin: u64, end: Option<u64>) -> Read {
        Read {
            owner: format!("rank {rank}"),
            track: track.into(),
            category: category.into(),
            name: name.into(),
            begin,
            end,
            ..Read::default()
        }
    }

    fn life(rank: usize, number: i64, begin: u64, end: u64) -> Read {
        let mut life = span(rank, "lives", "life", "life", begin, Some(end));
        life.facts.insert("life".into(), Fact::Number(number));
        life
    }

    /// What is between these, the first time.
    fn part<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
        let begin = text.find(from).unwrap_or_else(|| panic!("no {from}"));
        &text[begin..begin + text[begin..].find(to).unwrap()]
    }

    #[test]
    fn a_rank_that_was_killed() {
        let spans = [
            life(0, 1, 0, 1_000_000_000),
            life(1, 1, 0, 400_000_000),
            span(0, "MPI", "mpi", "MPI_Send", 100_000_000, Some(300_000_000)),
            span(1, "lives", "failure", "failed", 400_000_000, None),
            life(1, 2, 500_000_000, 1_000_000_000),
            span(1, "replay", "replay", "replay", 600_000_000, Some(650_000_000)),
        ];
        let mut report = Report::of(&spans);
        report.failures.push(Failure {
            rank: 1,
            life: 2,
            cause: Some("killed by <SIGKILL>".into()),
            at: 400_000_000,
            cost: 250_000_000,
            begins: None,
            replay: 50_000_000,
            is_over: true,
        });
        let picture = of(&report, "a & b");
        assert!(picture.contains("a &amp; b: 1.0 s of 2 ranks"));
        let calm = part(&picture, "id=\"rank-0\"", "</g>");
        assert!(calm.contains("class=\"in-mpi\" d=\"M100 0h200\"") && !calm.contains("replay"));
        let killed = part(&picture, "id=\"rank-1\"", "</g>");
        assert!(killed.contains("class=\"dead\" d=\"M400 0h100\""), "{killed}");
        assert!(killed.contains("class=\"replay\" d=\"M600 0h50\"") && killed.contains("mostly replay"));
        let failure = part(killed, "class=\"failed\" d=\"M400 0", "</path>");
        assert!(failure.contains("rank 1 killed by &lt;SIGKILL&gt; at 0.4 s: 0.2 s until life 2 had caught up"));
        assert!(killed.contains("rank 1, life 2: 0.500 s to 1.000 s") && !killed.contains("class=\"again\""));
        let shares = part(&picture, "id=\"shares-1\"", "</g>");
        assert!(shares.contains("replay (repeated work) 50.0 ms, 5.6 %"), "{shares}");
        assert!(picture.contains(">0.2 s</text>") && picture.contains(">80 %</text>"));
        assert!(picture.contains("prefers-color-scheme: dark"));
    }

    /// A trace of the largest kind: each rank changes its state all the time.
    #[test]
    fn the_file_stays_small() {
        let mut spans = Vec::new();
        for rank in 0..64 {
            spans.push(life(rank, 1, 0, 40_000_000));
            for call in 0..4000 {
                let begin = call * 10_000 + 3_000;
                let length = if call % 8 < 4 { 9_000 } else { 1_000 };
                spans.push(span(rank, "MPI", "mpi", "MPI_Send", begin, Some(begin + length)));
                if call % 4 == 0 {
                    spans.push(span(rank, "images", "image", "image", begin, Some(begin + 10)));
                }
            }
        }
        let picture = of(&Report::of(&spans), "large");
        assert!(picture.len() < 2_000_000, "{}", picture.len());
        assert!(picture.contains("rank 63: 1,000 images"));
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!([0.95, 10.0, 34.0].map(step), [0.1, 1.0, 5.0]);
        assert!(step(0.0) > 0.0);
        // No rank, and no time.
        assert!(of(&Report::default(), "").contains("0.0 ms of 0 ranks"));
    }
}

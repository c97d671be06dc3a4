//! Advice on images and protocols (`resurgo advise`, and a line of `--stats`): the figures of a run, and words.

use resurgo_protocol::advice::{Choice, Figures, Means};
use serde_json::{Value, json};

use crate::units::readable_size;

const HOUR: f64 = 3600.0;
/// Seconds that a byte in the log costs: it is copied, and its memory may be new.
const LOGGED_BYTE: f64 = 1e-9;

/// What is known, of a run or from the user.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Given {
    pub nodes: Option<u32>,
    pub work: Option<f64>,
    pub mtbf: Option<f64>,
    pub at_once: Option<u32>,
    pub outage: Option<f64>,
    pub image: Option<f64>,
    pub cost: Option<f64>,
    pub restart: Option<f64>,
    pub link: Option<f64>,
    pub place: Option<f64>,
    pub slowdown: Option<f64>,
    pub logging: Option<f64>,
    pub log_growth: Option<f64>,
}

impl Given {
    /// From what `--stats-json` has written.
    pub fn of_run(stats: &Value) -> Result<Given, String> {
        if stats["schema"] != json!(1) || !stats["checkpoints"].is_object() {
            return Err("it is no file of --stats-json".to_string());
        }
        let wall = stats["wall_seconds"].as_f64().unwrap_or_default();
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let number = |value: &Value| value.as_f64().unwrap_or_default();
        let (ranks, nodes) = (
            list(&stats["ranks"]).len().max(1) as f64,
            list(&stats["nodes"]).len().max(1),
        );
        let (images, recoveries, total) = (&stats["checkpoints"], &stats["recoveries"], &stats["total"]);
        // A round of single images counts as a wave.
        let rounds = match number(&images["waves"]) {
            0.0 => number(&images["images"]) / ranks,
            waves => waves,
        };
        let parts_of_round = number(&images["waves"]).min(1.0) + (1.0 - number(&images["waves"]).min(1.0)) * ranks;
        let sizes: Vec<f64> = list(&images["each"])
            .iter()
            .filter_map(|one| one["bytes"].as_f64())
            .collect();
        let returns: Vec<f64> = list(&recoveries["each"])
            .iter()
            .filter(|one| one["complete"] == json!(true))
            .map(|one| {
                number(&one["total_seconds"]) - number(&one["replay_seconds"]) - number(&one["catch_up_seconds"])
            })
            .collect();
        let (stored, storing) = list(&stats["places"])
            .iter()
            .fold((0.0, 0.0), |(bytes, seconds), place| {
                (bytes + number(&place["bytes"]), seconds + number(&place["seconds"]))
            });
        let some = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
        let mean = |values: &[f64]| some(values.iter().sum::<f64>() / values.len() as f64);
        let growth = some(number(&total["bytes"]) / wall / ranks);
        let held = number(&total["held_seconds"]) / wall / ranks;
        Ok(Given {
            nodes: Some(nodes as u32),
            work: some(wall - number(&recoveries["lost_seconds"])),
            mtbf: some(wall / number(&recoveries["failures"])),
            at_once: Some(u32::from(nodes > 1)),
            image: mean(&sizes).map(|size| size * parts_of_round / nodes as f64),
            cost: some(number(&images["effective_delay_seconds"]) / rounds),
            restart: mean(&returns),
            place: some(stored / storing),
            logging: growth.map(|growth| growth * LOGGED_BYTE + held),
            log_growth: growth,
            ..Given::default()
        })
    }

    /// These, and where something is missing, that of `other`.
    pub fn or(self, other: Given) -> Given {
        Given {
            nodes: self.nodes.or(other.nodes),
            work: self.work.or(other.work),
            mtbf: self.mtbf.or(other.mtbf),
            at_once: self.at_once.or(other.at_once),
            outage: self.outage.or(other.outage),
            image: self.image.or(other.image),
            cost: self.cost.or(other.cost),
            restart: self.restart.or(other.restart),
            link: self.link.or(other.link),
            place: self.place.or(other.place),
            slowdown: self.slowdown.or(other.slowdown),
            logging: self.logging.or(other.logging),
            log_growth: self.log_growth.or(other.log_growth),
        }
    }

    /// With what is assumed where nothing is known.
    pub fn figures(&self) -> Result<Figures, String> {
        let nodes = self.nodes.unwrap_or(1);
        let at_once = self.at_once.unwrap_or(u32::from(nodes > 1)).min(nodes);
        let cost = self
            .cost
            .ok_or("the cost of an image is not known: give --cost, or the --stats-json of a run with images")?;
        let image =
            match (self.image, at_once) {
                (Some(image), _) => image,
                (None, 0) if self.place.is_none() => 0.0,
                _ => return Err(
                    "the size of images is not known: give --image, or the --stats-json of a run with --checkpoint-dir"
                        .into(),
                ),
            };
        let log_growth = self.log_growth.unwrap_or(1e6);
        Ok(Figures {
            nodes,
            work: self.work.unwrap_or(24.0 * HOUR),
            mtbf: self.mtbf.unwrap_or(24.0 * HOUR),
            at_once,
            outage: self.outage.unwrap_or(f64::INFINITY),
            image,
            cost,
            restart: self.restart.unwrap_or(2.0),
            link: self.link.unwrap_or(117e6),
            place: self.place.unwrap_or(0.0),
            slowdown: self.slowdown.unwrap_or(0.1),
            // Where nodes may be lost others must know of each delivery.
            logging: self.logging.unwrap_or(if at_once > 0 { 0.2 } else { 0.05 }),
            log_growth,
            log_room: (1_u64 << 30) as f64,
            replay: 0.8,
        })
    }
}

/// `25.4 h`.
pub fn span(seconds: f64) -> String {
    match seconds {
        // Of a job that fails before it can return.
        _ if seconds > 1000.0 * 365.0 * 24.0 * HOUR || seconds.is_nan() => "never".to_string(),
        _ if seconds < 0.1 => format!("{:.0} ms", seconds * 1e3),
        _ if seconds < 120.0 => format!("{seconds:.1} s"),
        _ if seconds < 2.0 * HOUR => format!("{:.1} min", seconds / 60.0),
        _ if seconds < 100.0 * HOUR => format!("{:.1} h", seconds / HOUR),
        _ => format!("{:.1} days", seconds / HOUR / 24.0),
    }
}

/// As an option takes it: two digits, as the best interval is flat.
fn option(seconds: f64) -> String {
    let digits = |value: f64| match value {
        _ if value >= 10.0 => format!("{value:.0}"),
        _ => format!("{value:.1}"),
    };
    match seconds {
        _ if seconds < 1.0 => format!("{:.0}ms", (seconds * 1e3).max(10.0)),
        _ if seconds < 100.0 => format!("{}s", digits(seconds)),
        _ if seconds < 100.0 * 60.0 => format!("{}m", digits(seconds / 60.0)),
        _ => format!("{}h", digits(seconds / HOUR)),
    }
}

/// The options of `resurgo run` for it.
pub fn options(figures: &Figures, choice: &Choice) -> String {
    let every = option(choice.interval);
    let mut words = match choice.means {
        Means::Nothing => return "no images".to_string(),
        Means::Waves => format!("--protocol blocking --checkpoint-every {every}"),
        Means::Logging if figures.at_once > 0 => {
            format!("--protocol causal --tolerate node --checkpoint-every {every}")
        }
        Means::Logging => format!("--protocol pessimistic --checkpoint-every {every}"),
    };
    let place = match choice.place_every {
        0 => String::new(),
        1 => "PLACE".to_string(),
        number => format!("'PLACE;every={number}'"),
    };
    let peers = match choice.replicas {
        0 | 1 => String::new(),
        replicas => format!("peers:{replicas}"),
    };
    let stores: Vec<String> = [peers, place].into_iter().filter(|word| !word.is_empty()).collect();
    if choice.place_every > 0 {
        words += " --checkpoint-dir DIR";
    }
    for store in stores {
        words += &format!(" --store {store}");
    }
    words
}

fn means(means: Means) -> &'static str {
    match means {
        Means::Nothing => "begins again",
        Means::Waves => "waves",
        Means::Logging => "logging",
    }
}

/// Where the images are.
fn images(choice: &Choice) -> String {
    let replicas = match choice.replicas {
        0 => String::new(),
        1 => "1 replica".to_string(),
        replicas => format!("{replicas} replicas"),
    };
    let place = match choice.place_every {
        0 => String::new(),
        1 => "place".to_string(),
        number => format!("place each {number}"),
    };
    match (replicas.is_empty(), place.is_empty()) {
        (true, true) if choice.means == Means::Nothing => "none".to_string(),
        (true, true) => "on the node".to_string(),
        (true, false) => place,
        (false, true) => replicas,
        (false, false) => format!("{replicas}, {place}"),
    }
}

/// All ways, the best first, for people.
pub fn table(figures: &Figures) -> Vec<String> {
    let choices = figures.choices();
    let nodes = match figures.nodes {
        1 => "one node".to_string(),
        nodes => format!("{nodes} nodes"),
    };
    let failure = match figures.at_once {
        0 => "a process".to_string(),
        1 => "a node".to_string(),
        several => format!("{several} nodes at once"),
    };
    let mut lines = vec![
        format!(
            "{} of work on {nodes}; every {} a failure of {failure}; a wave of {} a node stops the job for {}",
            span(figures.work),
            span(figures.mtbf),
            readable_size(figures.image as u64),
            span(figures.cost)
        ),
        String::new(),
        format!(
            "{:<13} {:<24} {:>9} {:>11} {:>8} {:>10}",
            "AFTER FAILURE", "IMAGES", "EVERY", "EXPECTED", "MORE", "SURVIVES"
        ),
    ];
    lines.extend(choices.iter().map(|choice| {
        let more = 100.0 * (choice.expected / figures.work - 1.0);
        let told = |is_told: bool, text: String| if is_told { text } else { "-".to_string() };
        format!(
            "{:<13} {:<24} {:>9} {:>11} {:>8} {:>10}",
            means(choice.means),
            images(choice),
            told(choice.interval.is_finite(), span(choice.interval)),
            span(choice.expected),
            told(more < 1e5, format!("{more:.1} %")),
            told(
                choice.means != Means::Nothing,
                format!("{:.3} %", 100.0 * choice.survives)
            ),
        )
    }));
    lines.extend([
        String::new(),
        format!("take: {}", options(figures, &choices[0])),
        format!("because {}", figures.reason(&choices)),
    ]);
    lines
}

/// The same for programs.
pub fn to_json(figures: &Figures) -> Value {
    let choices = figures.choices();
    let told: Vec<Value> = choices
        .iter()
        .map(|choice| {
            json!({
                "after_failure": means(choice.means), "replicas": choice.replicas, "place_every": choice.place_every,
                "interval_seconds": choice.interval, "expected_seconds": choice.expected, "survives": choice.survives,
                "options": options(figures, choice),
            })
        })
        .collect();
    json!({
        "nodes": figures.nodes, "work_seconds": figures.work, "mtbf_seconds": figures.mtbf, "nodes_at_once": figures.at_once,
        "outage_seconds": figures.outage, "image_bytes": figures.image, "cost_seconds": figures.cost,
        "restart_seconds": figures.restart, "bandwidth": figures.link, "place_bandwidth": figures.place,
        "slowdown": figures.slowdown, "logging": figures.logging, "log_growth": figures.log_growth,
        "choices": told, "reason": figures.reason(&choices),
    })
}

/// The advice after a run with images: one line.
pub fn line(stats: &Value) -> Option<String> {
    let given = Given::of_run(stats).ok()?;
    let figures = given.figures().ok()?;
    let choices = figures.choices();
    let assumed = if given.mtbf.is_none() { " (assumed)" } else { "" };
    Some(format!(
        "advice, for a failure every {}{assumed}: {}: {}",
        span(figures.mtbf),
        options(&figures, &choices[0]),
        figures.reason(&choices)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> Value {
        json!({
            "schema": 1, "protocol": "blocking", "wall_seconds": 1000.0, "total": {"bytes": 4_000_000_000_u64, "held_seconds": 0.0},
            "ranks": [{}, {}, {}, {}], "nodes": [{"lost_at": null}, {"lost_at": 5.0}],
            "places": [{"bytes": 100, "put_bytes": 50, "seconds": 2.0}],
            "checkpoints": {"images": 0, "waves": 10, "effective_delay_seconds": 20.0,
                "each": [{"bytes": 4_000_000_000_u64}, {"bytes": null}]},
            "recoveries": {"failures": 4, "lost_seconds": 100.0, "each": [
                {"complete": true, "total_seconds": 5.0, "replay_seconds": 2.0, "catch_up_seconds": null},
                {"complete": false, "total_seconds": null, "replay_seconds": null, "catch_up_seconds": null}]},
        })
    }

    #[test]
    fn figures_of_a_run() {
        let given = Given::of_run(&run()).unwrap();
        let expected = Given {
            nodes: Some(2),
            work: Some(900.0),
            mtbf: Some(250.0),
            at_once: Some(1),
            image: Some(2e9),
            cost: Some(2.0),
            restart: Some(3.0),
            place: Some(50.0),
            logging: Some(0.001),
            log_growth: Some(1e6),
            ..Given::default()
        };
        assert_eq!(given, expected);
        assert!(Given::of_run(&json!({"event": "started"})).is_err());
        let told = Given {
            mtbf: Some(1.0),
            ..Given::default()
        };
        assert_eq!(told.or(given).mtbf, Some(1.0));
    }

    #[test]
    fn a_run_without_images_says_what_is_missing() {
        let mut stats = run();
        stats["checkpoints"] = json!({"images": 0, "waves": 0, "effective_delay_seconds": 0.0, "each": []});
        let given = Given::of_run(&stats).unwrap();
        assert!(given.figures().unwrap_err().contains("--cost"));
        assert_eq!(line(&stats), None);
    }

    #[test]
    fn single_images_count_by_rounds() {
        let mut stats = run();
        stats["checkpoints"] =
            json!({"images": 8, "waves": 0, "effective_delay_seconds": 1.0, "each": [{"bytes": 100}]});
        let given = Given::of_run(&stats).unwrap();
        assert_eq!((given.cost, given.image), (Some(0.5), Some(200.0)));
    }

    #[test]
    fn logging_for_the_loss_of_nodes_costs_more() {
        let given = |nodes| Given {
            nodes: Some(nodes),
            cost: Some(1.0),
            image: Some(1e9),
            ..Given::default()
        };
        let logging = |nodes| given(nodes).figures().unwrap().logging;
        assert_eq!((logging(1), logging(2)), (0.05, 0.2));
        let figures = given(2).figures().unwrap();
        let choices = figures.choices();
        let logged = choices.iter().find(|choice| choice.means == Means::Logging).unwrap();
        assert!(options(&figures, logged).starts_with("--protocol causal --tolerate node --checkpoint-every "));
    }

    #[test]
    fn intervals_are_options() {
        let told = [0.001, 0.25, 2.55, 61.0, 600.0, 36_000.0].map(option);
        assert_eq!(told, ["10ms", "250ms", "2.5s", "61s", "10m", "10h"]);
    }

    #[test]
    fn advice_in_words() {
        let figures = Given::of_run(&run()).unwrap().figures().unwrap();
        let lines = table(&figures);
        assert!(
            lines.iter().any(|line| line.starts_with("take: --protocol ")),
            "{lines:#?}"
        );
        assert!(
            lines[0].contains("on 2 nodes; every 4.2 min a failure of a node"),
            "{lines:#?}"
        );
        let value = to_json(&figures);
        assert_eq!(value["choices"].as_array().unwrap().len(), figures.choices().len());
        assert!(
            line(&run())
                .unwrap()
                .starts_with("advice, for a failure every 4.2 min: ")
        );
    }
}

//! The state of a job in the text format of OpenMetrics 1.0.

use std::fmt::{Display, Write};

use resurgo_wire::console::{Doing, RankState, Standing, State};

pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Before anything is known.
pub const NOTHING: &str = "# EOF\n";

/// A text that grows.
struct Text(String);

impl Text {
    /// Begins a family. `unit`: the end of its name, if it has one.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# TYPE resurgo_{name} {kind}");
        if let Some(unit) = ["seconds", "bytes"].into_iter().find(|unit| name.ends_with(unit)) {
            let _ = writeln!(self.0, "# UNIT resurgo_{name} {unit}");
        }
        let _ = writeln!(self.0, "# HELP resurgo_{name} {help}");
    }

    /// A line of a family.
    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let labels = match labels.is_empty() {
            true => String::new(),
            false => format!("{{{}}}", labels.join(",")),
        };
        let _ = writeln!(self.0, "resurgo_{name}{labels} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value);
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        self.sample(&format!("{name}_total"), &[], value);
    }

    /// A value for each rank.
    fn of_ranks(&mut self, state: &State, name: &str, kind: &str, help: &str, of: fn(&RankState) -> u64) {
        self.family(name, kind, help);
        let end = if kind == "counter" { "_total" } else { "" };
        for rank in &state.ranks {
            self.sample(&format!("{name}{end}"), &[("rank", &rank.rank.to_string())], of(rank));
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// `exit_code`: the job is over.
pub fn of(state: &State, exit_code: Option<i32>) -> String {
    let mut text = Text(String::new());
    text.family("job", "info", "The job.");
    let (job, ranks) = (state.job.to_string(), state.ranks.len().to_string());
    let labels = [
        ("job", &*job),
        ("protocol", &state.protocol),
        ("ranks", &ranks),
        ("version", env!("CARGO_PKG_VERSION")),
    ];
    text.sample("job_info", &labels, 1);
    text.gauge("run_seconds", "Since the start of the job.", state.seconds);
    text.counter("failures", "Failures of ranks.", state.failures);
    text.counter("restarts", "Ranks that began again.", state.restarts);
    text.counter("images", "Images of single ranks, or complete waves.", state.images);
    if let Some(image) = &state.last_image {
        text.gauge("last_image_age_seconds", "Since the last image or wave.", image.seconds);
    }
    if let Some(code) = exit_code {
        text.gauge("exit_code", "The job is over, with this exit status.", code);
    }
    text.family("ranks", "gauge", "Ranks by what they do.");
    for doing in Doing::ALL {
        let count = state.ranks.iter().filter(|rank| rank.state == doing).count();
        text.sample("ranks", &[("state", doing.name())], count);
    }
    text.family("nodes", "gauge", "Nodes by how they stand.");
    for standing in Standing::ALL {
        let count = state.nodes.iter().filter(|node| node.state == standing).count();
        text.sample("nodes", &[("state", standing.name())], count);
    }
    nodes(&mut text, state);
    text.of_ranks(state, "messages", "counter", "Messages sent.", |rank| rank.messages);
    text.of_ranks(state, "sent_bytes", "counter", "Bytes of these messages.", |rank| {
        rank.bytes
    });
    text.of_ranks(state, "deliveries", "counter", "Messages got.", |rank| rank.deliveries);
    text.of_ranks(
        state,
        "rank_restarts",
        "counter",
        "How often the rank began again.",
        |rank| rank.restarts,
    );
    text.of_ranks(
        state,
        "log_bytes",
        "gauge",
        "Memory that the rank's log holds.",
        |rank| rank.log_bytes,
    );
    text.of_ranks(
        state,
        "life",
        "gauge",
        "The number of the rank's life, from 1.",
        |rank| rank.life,
    );
    text.family(
        "rank_replayed_ratio",
        "gauge",
        "The part that a replaying rank has repeated.",
    );
    for rank in &state.ranks {
        if let Some(part) = rank.replayed {
            text.sample("rank_replayed_ratio", &[("rank", &rank.rank.to_string())], part);
        }
    }
    text.0 += NOTHING;
    text.0
}

fn nodes(text: &mut Text, state: &State) {
    let labels =
        |node: &resurgo_wire::console::NodeState| (node.node.to_string(), node.name.clone().unwrap_or_default());
    text.family("node_ranks", "gauge", "Ranks on the node.");
    for node in &state.nodes {
        let (number, name) = labels(node);
        text.sample("node_ranks", &[("node", &number), ("name", &name)], node.ranks);
    }
    text.family(
        "node_held_bytes",
        "gauge",
        "What the node holds of other nodes' images.",
    );
    for node in &state.nodes {
        let (number, name) = labels(node);
        text.sample(
            "node_held_bytes",
            &[("node", &number), ("name", &name)],
            node.held_bytes,
        );
    }
    text.family("node_silent_seconds", "gauge", "Since the last message of the node.");
    for node in &state.nodes {
        if let Some(silent) = node.silent_seconds {
            let (number, name) = labels(node);
            text.sample("node_silent_seconds", &[("node", &number), ("name", &name)], silent);
        }
    }
}

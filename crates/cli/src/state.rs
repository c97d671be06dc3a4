//! The state of a running job, for `resurgo ps JOB` and `resurgo top`.

use std::ffi::OsString;
use std::fmt::Write;
use std::time::Duration;

use resurgo_runtime::units::{counted, one_line, readable_duration, readable_size};
use resurgo_wire::console::{Doing, NodeState, RankState, Reply, Request, State};
use serde_json::{Value, json};

use crate::{jobs, say};

/// Columns of the tables of nodes and ranks: the titles, and how wide they are; below 0: to the left.
pub const NODE_COLUMNS: [(&str, i8); 7] = [
    ("NODE", 5),
    ("NAME", -16),
    ("STATE", -8),
    ("RANKS", 6),
    ("LOG", 10),
    ("HOLDS", 10),
    ("SILENT", 8),
];
pub const RANK_COLUMNS: [(&str, i8); 8] = [
    ("RANK", 5),
    ("NODE", 5),
    ("PID", 8),
    ("LIFE", 5),
    ("MESSAGES", 11),
    ("SENT", 10),
    ("LOG", 10),
    ("STATE", -20),
];

/// The column with the node of a rank, and how wide it becomes for names at most.
const NODE_OF_RANK: usize = 1;
const WIDEST_NAME: usize = 40;

/// The last events that are shown.
const EVENTS: usize = 10;

/// Whether the arguments of `resurgo ps` name one job.
pub fn is_meant(arguments: &[OsString]) -> bool {
    let mut names = arguments.iter().filter(|word| *word != "--json");
    let is_name = |word: &OsString| !word.as_encoded_bytes().starts_with(b"-");
    names.next().is_some_and(is_name) && names.next().is_none()
}

/// `resurgo ps JOB [--json]`; also what `verb` shows without a terminal.
pub fn ps(verb: &str, arguments: Vec<OsString>) -> i32 {
    let (options, job): (Vec<OsString>, Vec<OsString>) = arguments.into_iter().partition(|word| word == "--json");
    let as_json = !options.is_empty();
    let job = match jobs::wanted(verb, &job) {
        Ok(job) => job,
        Err(code) => return code,
    };
    let number = job.number;
    match jobs::asked(job, &Request::State { after: 0 }) {
        Ok(Reply::State(state)) if as_json => say::print(&format!("{}\n", json!(state))),
        Ok(Reply::State(state)) => say::print(&table(&state)),
        Ok(_) => return say::failed(&jobs::strange(number)),
        Err(code) => return code,
    }
    0
}

/// All of it, for people.
pub fn table(state: &State) -> String {
    let mut text = String::new();
    for line in head(state) {
        let _ = writeln!(text, "{line}");
    }
    let _ = write!(text, "\n{}\n{}\n{}", nodes(state), ranks(state), events(state));
    text
}

/// The nodes, below their titles.
pub fn nodes(state: &State) -> String {
    let rows = state.nodes.iter().map(|node| node_row(node) + "\n");
    std::iter::once(titles(&NODE_COLUMNS) + "\n").chain(rows).collect()
}

/// The ranks with the names of their nodes, below their titles.
pub fn ranks(state: &State) -> String {
    let names: Vec<String> = state.ranks.iter().map(|rank| node_name(state, rank)).collect();
    let widest = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let mut columns = RANK_COLUMNS;
    let (_, width) = &mut columns[NODE_OF_RANK];
    *width = (*width).max(widest.min(WIDEST_NAME) as i8);
    let rows = state.ranks.iter().zip(names);
    let rows = rows.map(|(rank, name)| row(&columns, rank_cells(rank, name)) + "\n");
    std::iter::once(titles(&columns) + "\n").chain(rows).collect()
}

/// The last events.
pub fn events(state: &State) -> String {
    let last = &state.events[state.events.len().saturating_sub(EVENTS)..];
    last.iter().map(|event| event_line(event) + "\n").collect()
}

/// The job as a whole.
pub fn head(state: &State) -> [String; 3] {
    let image = state.last_image.as_ref().map_or("no image yet".to_string(), |image| {
        let what = match image.rank {
            Some(rank) => format!("image {} of rank {rank}", image.number),
            None => format!("wave {}", image.number),
        };
        format!("{what} {} ago", time(image.seconds))
    });
    let counted = |number, one| counted(number, one, &format!("{one}s"));
    [
        format!("job {}: {}", state.job, one_line(&state.command)),
        format!(
            "{}, {}, {}, {}; {image}{}",
            one_line(&state.protocol),
            time(state.seconds),
            counted(state.failures, "failure"),
            counted(state.restarts, "restart"),
            if state.is_ending { "; it is ending" } else { "" },
        ),
        format!(
            "{}, {}; logs {}",
            counted(state.messages, "message"),
            readable_size(state.bytes),
            readable_size(state.log_bytes),
        ),
    ]
}

fn row<const N: usize>(columns: &[(&str, i8); N], cells: [String; N]) -> String {
    let mut line = String::new();
    for ((_, width), cell) in columns.iter().zip(cells) {
        let wide = usize::from(width.unsigned_abs());
        let _ = match *width < 0 {
            true => write!(line, "{cell:<wide$} "),
            false => write!(line, "{cell:>wide$} "),
        };
    }
    line.trim_end().to_string()
}

pub fn titles<const N: usize>(columns: &[(&str, i8); N]) -> String {
    row(columns, columns.map(|(title, _)| title.to_string()))
}

pub fn node_row(node: &NodeState) -> String {
    let name = node.name.as_deref().map_or("this machine".to_string(), one_line);
    row(
        &NODE_COLUMNS,
        [
            node.node.to_string(),
            name,
            node.state.name().to_string(),
            node.ranks.to_string(),
            readable_size(node.log_bytes),
            readable_size(node.held_bytes),
            node.silent_seconds.map_or("-".to_string(), time),
        ],
    )
}

/// With the number of its node, whose name is in the table of nodes.
pub fn rank_row(rank: &RankState) -> String {
    row(&RANK_COLUMNS, rank_cells(rank, rank.node.to_string()))
}

fn rank_cells(rank: &RankState, node: String) -> [String; 8] {
    [
        rank.rank.to_string(),
        node,
        rank.pid.map_or("-".to_string(), |pid| pid.to_string()),
        rank.life.to_string(),
        rank.messages.to_string(),
        readable_size(rank.bytes),
        readable_size(rank.log_bytes),
        doing(rank),
    ]
}

/// The name of a rank's node where there are several, and otherwise its number.
fn node_name(state: &State, rank: &RankState) -> String {
    let node = state.nodes.iter().find(|node| node.node == rank.node);
    let name = node.and_then(|node| node.name.as_deref());
    name.map_or(rank.node.to_string(), one_line)
}

/// What a rank does.
fn doing(rank: &RankState) -> String {
    let mut text = rank.state.name().replace('_', " ");
    if let (Doing::Replaying, Some(part)) = (rank.state, rank.replayed) {
        let _ = write!(text, " {:.0} %", part.clamp(0.0, 1.0) * 100.0);
    }
    if let Some(source) = rank.waits_for {
        let _ = match rank.state {
            Doing::Waiting => write!(text, " for {source}"),
            _ => write!(text, ", waits for {source}"),
        };
    }
    if rank.writes_image {
        text.push_str(", writes image");
    }
    text
}

/// An event on one line: when, what, and its fields.
pub fn event_line(event: &Value) -> String {
    let Some(fields) = event.as_object() else {
        return String::new();
    };
    let name = event["event"].as_str().unwrap_or("?").replace('_', " ");
    let mut line = format!("{:>10}  {name}", time(event["time"].as_f64().unwrap_or(-1.0)));
    for (field, value) in fields {
        if ["event", "time", "number"].contains(&field.as_str()) {
            continue;
        }
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let _ = write!(line, " {field}={value}");
    }
    one_line(&line)
}

/// A number of seconds that another process told.
fn time(seconds: f64) -> String {
    Duration::try_from_secs_f64(seconds).map_or("?".to_string(), readable_duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_rank(rank: usize, node: usize) -> RankState {
        RankState {
            rank,
            node,
            pid: Some(77),
            life: 2,
            state: Doing::Replaying,
            waits_for: Some(1),
            replayed: Some(0.256),
            writes_image: false,
            restarts: 1,
            messages: 5,
            bytes: 2048,
            deliveries: 4,
            log_bytes: 0,
            sent_to: Vec::new(),
        }
    }

    #[test]
    fn the_table_names_the_node_of_each_rank() {
        let node = |node: usize, name: Option<&str>| NodeState {
            node,
            name: name.map(str::to_string),
            state: resurgo_wire::console::Standing::There,
            ranks: 1,
            log_bytes: 0,
            held_bytes: 0,
            silent_seconds: None,
        };
        let rows = |nodes: Vec<NodeState>| {
            let state = State {
                job: 1,
                command: String::new(),
                protocol: String::new(),
                is_ending: false,
                seconds: 0.0,
                failures: 0,
                restarts: 0,
                images: 0,
                last_image: None,
                messages: 0,
                bytes: 0,
                log_bytes: 0,
                nodes,
                ranks: vec![a_rank(0, 0), a_rank(1, 1)],
                last_event: 0,
                events: Vec::new(),
            };
            let text = table(&state);
            let is_title = |line: &&str| line.trim_start().starts_with("RANK");
            let from = text.lines().skip_while(|line| !is_title(line));
            from.take(3).map(str::to_string).collect::<Vec<_>>()
        };
        let named = rows(vec![node(0, Some("n1")), node(1, Some("alpha.cluster"))]);
        let cells = |rank: &str, name: &str| format!("{rank:>5} {name:>13} ");
        for (line, (rank, name)) in named
            .iter()
            .zip([("RANK", "NODE"), ("0", "n1"), ("1", "alpha.cluster")])
        {
            assert!(line.starts_with(&cells(rank, name)), "{named:?}");
        }
        let alone = rows(vec![node(0, None), node(1, None)]);
        assert_eq!(alone[1], rank_row(&a_rank(0, 0)));
    }

    #[test]
    fn events_and_ranks_are_lines() {
        let event = json!({"event": "node_lost", "time": 2.5, "number": 9, "node": 1, "reason": "a\nb"});
        assert_eq!(event_line(&event).trim_start(), "2.5 s  node lost node=1 reason=a b");
        assert_eq!(event_line(&json!(7)), "");
        let rank = a_rank(3, 0);
        let line = rank_row(&rank);
        assert!(line.ends_with("replaying 26 %, waits for 1"), "{line}");
        let words: Vec<&str> = line.split_whitespace().take(5).collect();
        assert_eq!(words, ["3", "0", "77", "2", "5"]);
    }

    #[test]
    fn names_are_those_of_json() {
        for state in Doing::ALL {
            assert_eq!(json!(state), state.name());
        }
        for state in resurgo_wire::console::Standing::ALL {
            assert_eq!(json!(state), state.name());
        }
    }
}

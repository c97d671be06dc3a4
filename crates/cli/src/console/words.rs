//! What the words of `resurgo console` ask for, what may follow them, and what is shown of the answer.

use resurgo_runtime::units::one_line;
use resurgo_wire::console::{Request, State};
use serde_json::{Value, json};

use super::table::{WORDS, find};
use crate::near::nearest;
use crate::{jobs, state};

/// What is asked for.
#[derive(Debug, PartialEq)]
pub enum Order {
    /// To be done by the job.
    Do(Request),
    /// To be seen in its state.
    See(Part),
    Help,
    Quit,
}

/// A part of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Hosts,
    Ranks,
    Status,
    Events,
    Protocol,
}

/// What a line asks for, or why it cannot be understood.
pub fn order(name: &str, rest: &[&str]) -> Result<Order, String> {
    let Some(word) = find(name) else {
        let names = WORDS.map(|word| word.name);
        let meant = nearest(name, &names).map_or(String::new(), |near| format!("did you mean {near}? "));
        return Err(format!("there is no word {}; {meant}help lists them", one_line(name)));
    };
    let what = match (word.takes, rest) {
        ("", []) => "",
        ("", _) => return Err(format!("nothing follows {name}")),
        (_, [what]) => what,
        (takes, _) => return Err(format!("write {name} {takes}")),
    };
    let wrong = |why: String| format!("{name} {}: {why}", one_line(what));
    let node = || what.to_string();
    Ok(match name {
        "hosts" => Order::See(Part::Hosts),
        "ranks" => Order::See(Part::Ranks),
        "status" => Order::See(Part::Status),
        "events" => Order::See(Part::Events),
        "protocol" => Order::See(Part::Protocol),
        "add" => Order::Do(jobs::to_add(what).map_err(wrong)?),
        "drain" | "remove" => Order::Do(Request::Drain {
            node: node(),
            removed: name == "remove",
        }),
        "kill" => Order::Do(jobs::to_kill(what).map_err(wrong)?),
        "checkpoint" => Order::Do(Request::Checkpoint),
        "suspend" => Order::Do(Request::Suspend),
        "quit" => Order::Quit,
        _ => Order::Help,
    })
}

/// What may stand behind these words. A node whose name a terminal cannot show is there with its number.
pub fn next(before: &[&str], state: impl Fn() -> Option<State>) -> Vec<String> {
    let takes = match before {
        [] => return WORDS.iter().map(|word| word.name.to_string()).collect(),
        [name] => find(name).map_or("", |word| word.takes),
        _ => "",
    };
    if !["NODE", "RANK"].contains(&takes) {
        return Vec::new();
    }
    let Some(state) = state() else {
        return Vec::new();
    };
    let is_one_word = |name: &&String| one_line(name) == **name && !name.contains(char::is_whitespace);
    let nodes = state.nodes.iter().map(|node| {
        let name = node.name.as_ref().filter(is_one_word);
        name.cloned().unwrap_or_else(|| node.node.to_string())
    });
    match takes {
        "NODE" => nodes.collect(),
        _ => state.ranks.iter().map(|rank| rank.rank.to_string()).collect(),
    }
}

impl Part {
    /// For people.
    pub fn text(self, state: &State) -> String {
        match self {
            Part::Hosts => state::nodes(state),
            Part::Ranks => state::ranks(state),
            Part::Status => state::head(state).join("\n") + "\n",
            Part::Events => state::events(state),
            Part::Protocol => one_line(&state.protocol) + "\n",
        }
    }

    /// For programs, with the fields of `resurgo ps --json JOB`.
    pub fn fields(self, state: &State) -> Value {
        match self {
            Part::Hosts => json!({"nodes": state.nodes}),
            Part::Ranks => json!({"ranks": state.ranks}),
            Part::Events => json!({"last_event": state.last_event, "events": state.events}),
            Part::Protocol => json!({"protocol": state.protocol}),
            Part::Status => {
                let mut all = json!(state);
                if let Some(fields) = all.as_object_mut() {
                    for other in ["nodes", "ranks", "events", "last_event"] {
                        fields.remove(other);
                    }
                }
                all
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_orders() {
        assert_eq!(order("kill", &["3"]), Ok(Order::Do(Request::KillRank { rank: 3 })));
        assert_eq!(order("hosts", &[]), Ok(Order::See(Part::Hosts)));
        let node = || "n1".to_string();
        assert_eq!(
            order("remove", &["n1"]),
            Ok(Order::Do(Request::Drain {
                node: node(),
                removed: true
            }))
        );
        assert_eq!(
            order("add", &["n1:4"]),
            Ok(Order::Do(Request::AddHost { host: node(), slots: 4 }))
        );
        for (name, rest, why) in [
            (
                "rnks",
                &[][..],
                "there is no word rnks; did you mean ranks? help lists them",
            ),
            ("\x1b[2J", &[], "there is no word  [2J; help lists them"),
            ("kill", &[], "write kill RANK"),
            ("kill", &["x\x1b"], "kill x : not the number of a rank"),
            ("kill", &["1", "2"], "write kill RANK"),
            ("ranks", &["1"], "nothing follows ranks"),
            ("add", &["n1:0"], "add n1:0: 0 is no number of slots"),
        ] {
            assert_eq!(order(name, rest), Err(why.to_string()));
        }
        for word in &WORDS {
            let what = if word.takes.is_empty() { &[][..] } else { &["1"] };
            let found = order(word.name, what).unwrap();
            assert_eq!(found == Order::Help, word.name == "help");
        }
    }
}

//! Limits of processes (`ulimit`): those of `resurgo run` hold on all nodes, as far as their machines permit it.

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use resurgo_wire::control::Limit;

use crate::units::{counted, readable_size};

/// The limits that nodes take, by their letters at `ulimit`.
const LIMITS: [(char, Resource); 5] = [
    ('c', Resource::RLIMIT_CORE),
    ('l', Resource::RLIMIT_MEMLOCK),
    ('n', Resource::RLIMIT_NOFILE),
    ('s', Resource::RLIMIT_STACK),
    ('u', Resource::RLIMIT_NPROC),
];

/// Those of this process.
pub fn own() -> Vec<Limit> {
    let own = LIMITS.iter().filter_map(|(letter, resource)| {
        let (soft, hard) = getrlimit(*resource).ok()?;
        Some(Limit {
            letter: *letter,
            soft,
            hard,
        })
    });
    own.collect()
}

/// Gives this agent, and all that it starts, these limits. Returns those that this machine does not permit, as they are
/// now.
pub fn take(wanted: &[Limit]) -> Vec<Limit> {
    let lower = wanted.iter().filter_map(|wanted| {
        let (_, resource) = LIMITS.iter().find(|(letter, _)| *letter == wanted.letter)?;
        // The agent needs files for all of its ranks. Their own limit is set when they begin.
        let soft = match resource {
            Resource::RLIMIT_NOFILE => wanted.hard,
            _ => wanted.soft,
        };
        let hard = set(*resource, soft, wanted.hard)?;
        Some(Limit {
            soft: wanted.soft.min(hard),
            hard,
            ..*wanted
        })
    });
    lower.collect()
}

/// Sets a limit of this process, as far as that is permitted. Returns the hard limit if it is lower.
pub fn set(resource: Resource, soft: u64, hard: u64) -> Option<u64> {
    if setrlimit(resource, soft, hard).is_ok() {
        return None;
    }
    let (_, most) = getrlimit(resource).ok()?;
    let _ = setrlimit(resource, soft.min(most), hard.min(most));
    (most < hard).then_some(most)
}

/// One line about nodes with lower limits; none: there are none. `nodes`: names, and what [`take`] has returned there.
pub fn warning(ours: &[Limit], nodes: &[(&str, &[Limit])]) -> Option<String> {
    let mut lower = nodes.iter().filter(|(_, limits)| !limits.is_empty());
    let (name, limits) = lower.next()?;
    let shown = limits.iter().filter_map(|theirs| {
        let ours = ours.iter().find(|ours| ours.letter == theirs.letter)?;
        let letter = theirs.letter;
        let (kind, theirs, ours) = match theirs.soft < ours.soft {
            true => ("", theirs.soft, ours.soft),
            false => ("H", theirs.hard, ours.hard),
        };
        let (theirs, ours) = (value(letter, theirs), value(letter, ours));
        Some(format!("ulimit -{kind}{letter} {theirs} in place of {ours}"))
    });
    let shown = shown.collect::<Vec<_>>().join(", ");
    let others = match lower.count() as u64 {
        0 => String::new(),
        others => format!(" and {}", counted(others, "other node", "other nodes")),
    };
    Some(format!(
        "ranks on node {name}{others} have lower limits than here: {shown}; raise the hard limits there (limits.conf)"
    ))
}

/// As people read it.
fn value(letter: char, limit: u64) -> String {
    match letter {
        _ if limit == RLIM_INFINITY => "unlimited".to_string(),
        'n' | 'u' => limit.to_string(),
        _ => readable_size(limit),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(letter: char, soft: u64, hard: u64) -> Limit {
        Limit { letter, soft, hard }
    }

    #[test]
    fn limits_of_this_process_can_be_taken() {
        let own = own();
        assert_eq!(own.iter().map(|limit| limit.letter).collect::<String>(), "clnsu");
        assert_eq!(take(&own), []);
        // A letter of another version.
        assert_eq!(take(&[limit('?', 1, 1)]), []);
    }

    #[test]
    fn lower_limits_are_told_once() {
        let ours = [limit('n', 1024, 4096), limit('s', RLIM_INFINITY, RLIM_INFINITY)];
        let lower = [limit('n', 1024, 2048), limit('s', 8 << 20, 8 << 20)];
        let warning = |nodes: &[(&str, &[Limit])]| warning(&ours, nodes);
        assert_eq!(warning(&[("a", &[])]), None);
        let told = warning(&[("a", &[]), ("b", &lower), ("c", &lower[1..])]).unwrap();
        let stack = readable_size(8 << 20);
        let limits = format!("ulimit -Hn 2048 in place of 4096, ulimit -s {stack} in place of unlimited");
        let expected = format!("ranks on node b and 1 other node have lower limits than here: {limits};");
        assert!(told.starts_with(&expected), "{told}");
    }
}

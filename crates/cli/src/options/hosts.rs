//! Hosts and their slots, as users name them: on the command line, in a file, and by Slurm.

use std::ffi::OsString;
use std::path::Path;

use super::types::{Hosts, Options};
use crate::{slurm, text_file};

/// The longest host file that is read, in bytes.
const LONGEST: u64 = 1 << 20;
/// Most slots that one word may give.
const MOST_SLOTS: u32 = 1 << 16;

/// A host as it is named, and how many ranks it takes in one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    pub host: String,
    pub count: u32,
    /// The option that names it.
    pub option: String,
}

/// All hosts that the command line names, or else those of Slurm; none: nothing is said of hosts. Files are named from `here`.
pub fn named(
    options: &Options,
    here: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<Slots>, String> {
    let mut all = Vec::new();
    for hosts in &options.nodes.hosts {
        let (option, shown, listed) = match hosts {
            Hosts::Listed(option, list) => (option, list.clone(), of_list(list)),
            Hosts::InFile(option, file) => (option, file.display().to_string(), of_file(&here.join(file))),
        };
        let failed = |why: String| format!("{option} {shown}: {why}");
        let listed = listed.map_err(failed)?;
        if listed.is_empty() {
            return Err(failed("names no host; leave it out".to_string()));
        }
        all.extend(listed.into_iter().map(|(host, count)| Slots {
            host,
            count,
            option: option.clone(),
        }));
    }
    if all.is_empty() && options.nodes.count.is_none() {
        let hosts = slurm::hosts(|name| variable(name)?.into_string().ok())?;
        all.extend(hosts.into_iter().map(|(host, count)| Slots {
            host,
            count,
            option: "SLURM_JOB_NODELIST".to_string(),
        }));
    }
    Ok(all)
}

/// Sets how many ranks there are where nothing is said: one, or a single program's as many as hosts take in one turn.
pub fn count_ranks(
    options: &mut Options,
    here: &Path,
    variable: impl Fn(&str) -> Option<OsString>,
) -> Result<(), String> {
    if options.programs.iter().all(|program| program.ranks > 0) {
        return Ok(());
    }
    let mut ranks = 1;
    if options.programs.len() == 1 {
        let of_one = options.nodes.per_node;
        let hosts = without_spares(named(options, here, variable)?, options.nodes.spares);
        let slots = hosts.iter().map(|slots| of_one.unwrap_or(slots.count) as usize);
        ranks = match options.nodes.count {
            Some(nodes) => {
                let nodes = nodes.saturating_sub(options.nodes.spares).max(1);
                nodes.saturating_mul(of_one.unwrap_or(1) as usize)
            }
            None => slots.sum::<usize>().max(1),
        };
    }
    for program in options.programs.iter_mut().filter(|program| program.ranks == 0) {
        program.ranks = ranks;
    }
    Ok(())
}

/// Without the last hosts, of different names.
fn without_spares(mut hosts: Vec<Slots>, spares: usize) -> Vec<Slots> {
    for _ in 0..spares {
        let Some(Slots { host: last, .. }) = hosts.last().cloned() else {
            break;
        };
        hosts.retain(|slots| slots.host != last);
    }
    hosts
}

/// `a,b:4,[::1]:2`.
fn of_list(list: &str) -> Result<Vec<(String, u32)>, String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(slots).collect()
}

/// A single one: `host` or `host:4`.
pub fn one(text: &str) -> Result<(String, u32), String> {
    match &of_list(text)?[..] {
        [(host, slots)] => Ok((host.clone(), *slots)),
        _ => Err("write one host".to_string()),
    }
}

/// A host on each line: `host`, `host:4` or `host slots=4`; `#` begins a comment.
fn of_file(file: &Path) -> Result<Vec<(String, u32)>, String> {
    let text = text_file::read(file, LONGEST)?;
    let text = String::from_utf8_lossy(&text);
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let wrong = |why: String| format!("line {number}: {why}");
        let (host, mut count) = slots(name).map_err(wrong)?;
        for word in words {
            match word.split_once('=') {
                Some(("slots", slots)) => count = counted(slots).map_err(wrong)?,
                // Of Open MPI: as many as mpirun may put there at most. Here ranks may share slots.
                Some(("max_slots" | "max-slots", _)) => {}
                _ => {
                    return Err(wrong(format!(
                        "{}: write host, host:SLOTS or host slots=N",
                        shown(word)
                    )));
                }
            }
        }
        hosts.push((host, count));
    }
    Ok(hosts)
}

/// `host:4`, `host` and `[::1]:4`.
fn slots(name: &str) -> Result<(String, u32), String> {
    let (host, count) = match name.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, rest.strip_prefix(':').or(Some(rest))),
        None => match name.split_once(':') {
            Some((host, count)) if !count.contains(':') => (host, Some(count)),
            _ => (name, None),
        },
    };
    let is_sane = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:@%".contains(&byte);
    // Whatever begins like an option would be one of ssh.
    if host.is_empty() || host.len() > 253 || host.starts_with('-') || !host.bytes().all(is_sane) {
        return Err(format!("{} is no name of a host", shown(name)));
    }
    let count = count.map_or(Ok(1), counted)?;
    Ok((host.to_string(), count))
}

fn counted(slots: &str) -> Result<u32, String> {
    let count = slots.parse().ok().filter(|count| (1..=MOST_SLOTS).contains(count));
    count.ok_or_else(|| format!("{} is no number of slots", shown(slots)))
}

/// Nothing in it steers a terminal.
fn shown(text: &str) -> String {
    text.chars().take(80).flat_map(char::escape_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_hosts_and_slots() {
        let hosts = |list: &str| of_list(list).unwrap();
        let all = hosts("a, b:4,,[::1]:2,::1,[fe80::1],me@c.d:3");
        let all: Vec<(&str, u32)> = all.iter().map(|(host, slots)| (host.as_str(), *slots)).collect();
        assert_eq!(
            all,
            [
                ("a", 1),
                ("b", 4),
                ("::1", 2),
                ("::1", 1),
                ("fe80::1", 1),
                ("me@c.d", 3)
            ]
        );
        assert_eq!(hosts(" , "), []);
        for (wrong, why) in [
            ("a:0", "\"0\""),
            ("a:x", "x is no number"),
            ("a:", "no number of slots"),
            ("[::1]4", "4"),
            ("-oProxyCommand=x", "no name"),
            ("a\x1b[31m", "a\\u{1b}"),
            ("a;rm", "no name"),
        ] {
            let found = of_list(wrong).err();
            let is_right = found
                .as_ref()
                .is_some_and(|found| found.contains(why.trim_matches('"')));
            assert!(is_right || wrong == "[::1]4", "{wrong}: {found:?}");
        }
    }

    #[test]
    fn files_name_hosts_and_slots() {
        let file = std::env::temp_dir().join(format!("resurgo-hosts-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            of_file(&file)
        };
        let hosts = read("# all\na slots=4\n\n b:2 # again\nc max_slots=8\n").unwrap();
        let hosts: Vec<(&str, u32)> = hosts.iter().map(|(host, slots)| (host.as_str(), *slots)).collect();
        assert_eq!(hosts, [("a", 4), ("b", 2), ("c", 1)]);
        assert_eq!(read("# nobody\n"), Ok(Vec::new()));
        assert_eq!(read("a\nb:0\n").unwrap_err(), "line 2: 0 is no number of slots");
        let wrong = read("a user=me\n").unwrap_err();
        assert!(wrong.starts_with("line 1: user=me: write host"), "{wrong}");
        std::fs::remove_file(&file).unwrap();
        assert!(of_file(&file).unwrap_err().contains("No such file"));
        assert!(of_file(Path::new("/dev/zero")).is_err());
    }
}

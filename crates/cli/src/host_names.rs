//! Hosts and their slots as text, in lists and in files.

use std::path::Path;

use crate::text_file;

/// The longest host file that is accepted, in bytes.
const LONGEST: u64 = 1 << 20;
/// The most slots that one word may give.
const MOST_SLOTS: u32 = 1 << 16;

/// A host as a file names it: with its slots and its rack.
pub type Named = (String, u32, Option<String>);

/// `a,b:4,[::1]:2`.
pub fn of_list(list: &str) -> Result<Vec<(String, u32)>, String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    names.map(slots).collect()
}

/// A single host: `host` or `host:4`.
pub fn one(text: &str) -> Result<(String, u32), String> {
    match &of_list(text)?[..] {
        [(host, slots)] => Ok((host.clone(), *slots)),
        _ => Err("write one host".to_string()),
    }
}

/// A host on each line: `host`, `host:4` or `host slots=4 rack=r1`; `#` begins a comment.
pub fn of_file(file: &Path) -> Result<Vec<Named>, String> {
    let text = text_file::read(file, LONGEST)?;
    let text = String::from_utf8_lossy(&text);
    let mut hosts = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split('#').next().unwrap_or_default().split_whitespace();
        let Some(name) = words.next() else { continue };
        let wrong = |why: String| format!("line {number}: {why}");
        let (host, mut count) = slots(name).map_err(wrong)?;
        let mut rack = None;
        for word in words {
            match word.split_once('=') {
                Some(("slots", slots)) => count = counted(slots).map_err(wrong)?,
                Some(("rack", name)) if !name.is_empty() => rack = Some(name.to_string()),
                // For Open MPI, the most ranks that mpirun may put there. Here ranks may share slots.
                Some(("max_slots" | "max-slots", _)) => {}
                _ => {
                    return Err(wrong(format!(
                        "{}: write host, host:SLOTS or host slots=N rack=NAME",
                        shown(word)
                    )));
                }
            }
        }
        hosts.push((host, count, rack));
    }
    Ok(hosts)
}

/// `host:4`, `host` and `[::1]:4`.
pub fn slots(name: &str) -> Result<(String, u32), String> {
    let (host, count) = match name.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, rest.strip_prefix(':').or(Some(rest))),
        None => match name.split_once(':') {
            Some((host, count)) if !count.contains(':') => (host, Some(count)),
            _ => (name, None),
        },
    };
    let is_sane = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:@%".contains(&byte);
    // A name that begins like an option would be an option of ssh.
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

/// Shows a text so that nothing in it steers a terminal.
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
        let hosts = read("# all\na slots=4\n\n b:2 rack=r1 # again\nc max_slots=8 rack=r1\n").unwrap();
        let hosts: Vec<(&str, u32, Option<&str>)> = hosts
            .iter()
            .map(|(host, slots, rack)| (host.as_str(), *slots, rack.as_deref()))
            .collect();
        assert_eq!(hosts, [("a", 4, None), ("b", 2, Some("r1")), ("c", 1, Some("r1"))]);
        assert!(read("a rack=\n").is_err());
        assert_eq!(read("# nobody\n"), Ok(Vec::new()));
        assert_eq!(read("a\nb:0\n").unwrap_err(), "line 2: 0 is no number of slots");
        let wrong = read("a user=me\n").unwrap_err();
        assert!(wrong.starts_with("line 1: user=me: write host"), "{wrong}");
        std::fs::remove_file(&file).unwrap();
        assert!(of_file(&file).unwrap_err().contains("No such file"));
        assert!(of_file(Path::new("/dev/zero")).is_err());
    }
}

//! What Slurm says about the job that this process runs in: its hosts, and when it ends.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The time left: from SLURM_JOB_END_TIME, or else from squeue. None: there is no limit.
pub fn time_left() -> Result<Option<Duration>, String> {
    if let Some(end) = std::env::var("SLURM_JOB_END_TIME")
        .ok()
        .and_then(|end| end.parse::<u64>().ok())
    {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(Some(Duration::from_secs(end).saturating_sub(now)));
    }
    let Ok(job) = std::env::var("SLURM_JOB_ID") else {
        return Err("--time-limit slurm: this is no job of Slurm (SLURM_JOB_ID is not set); give a time".to_string());
    };
    let unknown =
        |why: String| format!("--time-limit slurm: the time that is left cannot be found out: {why}; give a time");
    let said = Command::new("squeue")
        .args(["-h", "-o", "%L", "-j", &job])
        .output()
        .map_err(|error| unknown(format!("squeue: {error}")))?;
    let text = String::from_utf8_lossy(&said.stdout);
    if text.trim() == "UNLIMITED" {
        return Ok(None);
    }
    parse(text.trim()).map(Some).ok_or_else(|| {
        let errors = String::from_utf8_lossy(&said.stderr);
        unknown(format!("squeue says {:?}", format!("{}{}", text.trim(), errors.trim())))
    })
}

/// Reads `days-hours:minutes:seconds` as squeue writes it: squeue leaves out zero fields on the left.
fn parse(text: &str) -> Option<Duration> {
    let (days, time) = match text.split_once('-') {
        Some((days, time)) => (days.parse::<u64>().ok()?, time),
        None => (0, text),
    };
    let parts: Vec<u64> = time.split(':').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    if parts.len() < 2 || parts.len() > 3 {
        return None;
    }
    let seconds = parts.iter().fold(0, |sum, part| sum * 60 + part);
    Some(Duration::from_secs(days * 86_400 + seconds))
}

/// The most hosts that a list may have.
const MOST_HOSTS: usize = 1 << 16;

/// The hosts of the job that this process runs in, with Slurm's tasks for each; empty outside of a job.
pub fn hosts(variable: impl Fn(&str) -> Option<String>) -> Result<Vec<(String, u32)>, String> {
    let list = variable("SLURM_JOB_NODELIST").or_else(|| variable("SLURM_NODELIST"));
    let Some(list) = list.filter(|_| variable("SLURM_JOB_ID").is_some()) else {
        return Ok(Vec::new());
    };
    let wrong = |name: &str, value: &str| format!("{name}={value:?} cannot be read; write the hosts with -hosts");
    let names = expand(&list).ok_or_else(|| wrong("SLURM_JOB_NODELIST", &list))?;
    let Some(text) = variable("SLURM_TASKS_PER_NODE") else {
        return Ok(names.into_iter().map(|name| (name, 1)).collect());
    };
    let tasks = tasks(&text).filter(|tasks| tasks.len() == names.len());
    let tasks = tasks.ok_or_else(|| wrong("SLURM_TASKS_PER_NODE", &text))?;
    Ok(names.into_iter().zip(tasks).collect())
}

/// Each host of `n[1-3,07],login,r[0-1]n[0-9]`.
fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for word in split(list)? {
        hosts.extend(expand_word(word)?);
        if hosts.len() > MOST_HOSTS {
            return None;
        }
    }
    (!hosts.is_empty()).then_some(hosts)
}

/// Splits at commas outside of brackets.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut words, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (at, byte) in list.bytes().enumerate() {
        match byte {
            b'[' if !is_inside => is_inside = true,
            b']' if is_inside => is_inside = false,
            b'[' | b']' => return None,
            b',' if !is_inside => {
                words.push(&list[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    words.push(&list[start..]);
    (!is_inside && words.iter().all(|word| !word.is_empty())).then_some(words)
}

fn expand_word(word: &str) -> Option<Vec<String>> {
    let Some((head, rest)) = word.split_once('[') else {
        return Some(vec![word.to_string()]);
    };
    let (numbers, tail) = rest.split_once(']')?;
    let tails = expand_word(tail)?;
    let mut hosts = Vec::new();
    for range in numbers.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        // Leading zeros are part of the name.
        let width = first.len();
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last < first || (last - first).saturating_mul(tails.len()) > MOST_HOSTS {
            return None;
        }
        for number in first..=last {
            hosts.extend(tails.iter().map(|tail| format!("{head}{number:0width$}{tail}")));
        }
        if hosts.len() > MOST_HOSTS {
            return None;
        }
    }
    Some(hosts)
}

/// Each number of `2(x3),1`.
fn tasks(text: &str) -> Option<Vec<u32>> {
    let mut all = Vec::new();
    for word in text.split(',') {
        let (tasks, times) = match word.split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (word, 1),
        };
        let tasks: u32 = tasks.parse().ok().filter(|tasks| *tasks > 0)?;
        if times > MOST_HOSTS || all.len() > MOST_HOSTS {
            return None;
        }
        all.extend(std::iter::repeat_n(tasks, times));
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_squeue() {
        for (text, seconds) in [("0:07", 7), ("12:30", 750), ("1:00:00", 3600), ("2-01:00:05", 176_405)] {
            assert_eq!(parse(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "UNLIMITED", "INVALID", "7", "1:2:3:4", "1-x"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn lists_of_nodes() {
        let hosts = |list: &str| expand(list).map(|hosts| hosts.join(" "));
        for (list, expected) in [
            ("login", "login"),
            ("n[1-3,07],login", "n1 n2 n3 n07 login"),
            ("n[08-11]", "n08 n09 n10 n11"),
            ("r[0-1]n[0-1]-ib", "r0n0-ib r0n1-ib r1n0-ib r1n1-ib"),
        ] {
            assert_eq!(hosts(list).as_deref(), Some(expected), "{list}");
        }
        for list in [
            "",
            "n[1",
            "n1]",
            "n[[1]]",
            "n[2-1]",
            "n[a]",
            "n[]",
            ",",
            "n[0-9999999]",
            "n[0-9999]m[0-9999]",
        ] {
            assert_eq!(hosts(list), None, "{list}");
        }
        assert_eq!(tasks("2(x3),1"), Some(vec![2, 2, 2, 1]));
        for text in ["", "0", "x", "2(x", "2(xx)", "1(x99999999)"] {
            assert_eq!(tasks(text), None, "{text}");
        }
    }

    #[test]
    fn a_job_of_slurm_has_hosts_and_tasks() {
        let of = |tasks: Option<&str>, job: Option<&str>| {
            hosts(|name| {
                let value = match name {
                    "SLURM_JOB_NODELIST" => Some("n[1-2]"),
                    "SLURM_TASKS_PER_NODE" => tasks,
                    "SLURM_JOB_ID" => job,
                    _ => None,
                };
                value.map(String::from)
            })
        };
        let two = |tasks: [u32; 2]| Ok(vec![("n1".to_string(), tasks[0]), ("n2".to_string(), tasks[1])]);
        assert_eq!(of(Some("4,2"), Some("7")), two([4, 2]));
        assert_eq!(of(None, Some("7")), two([1, 1]));
        assert_eq!(of(Some("4,2"), None), Ok(Vec::new()));
        assert!(
            of(Some("4"), Some("7"))
                .unwrap_err()
                .contains("SLURM_TASKS_PER_NODE=\"4\"")
        );
    }
}

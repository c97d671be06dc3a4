//! What Slurm says about the job that this process runs in: its hosts, and when it ends.

use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The variable of a batch system that names hosts, and the hosts with the ranks that each takes in one turn.
pub type Allotted = (&'static str, Vec<(String, u32)>);

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

/// Steps of which Slurm says nothing of their own: the batch script's, and that of an interactive allocation.
const FIRST_SPECIAL_STEP: u64 = 0xffff_fff0;

/// The hosts of the job that this process runs in, with Slurm's tasks for each, or of its step (`srun`), which may be on a
/// part of them. None outside of a job.
///
/// # Errors
/// The variables cannot be read, or the job has several parts, each with hosts of its own.
pub fn hosts(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Allotted>, String> {
    if variable("SLURM_JOB_ID").is_none() {
        return Ok(None);
    }
    if let Some(parts) = variable("SLURM_HET_SIZE").filter(|parts| parts != "1") {
        return Err(format!(
            "SLURM_HET_SIZE={parts:?}: this job of Slurm has several parts; write its hosts with -hosts (and -launcher ssh)"
        ));
    }
    let step = variable("SLURM_STEP_ID").or_else(|| variable("SLURM_STEPID"));
    let step = step.and_then(|step| step.parse::<u64>().ok());
    let of_step = step.is_some_and(|step| step < FIRST_SPECIAL_STEP) && variable("SLURM_STEP_NODELIST").is_some();
    let [list, tasks] = match of_step {
        true => ["SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"],
        false => ["SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE"],
    };
    let Some(names) = variable(list).or_else(|| variable("SLURM_NODELIST")) else {
        return Ok(None);
    };
    let wrong = |name: &str, value: &str| format!("{name}={value:?} cannot be read; write the hosts with -hosts");
    let names = expand(&names).ok_or_else(|| wrong(list, &names))?;
    let Some(text) = variable(tasks) else {
        return Ok(Some((list, names.into_iter().map(|name| (name, 1)).collect())));
    };
    let each = each_of(&text).filter(|each| each.len() == names.len());
    let each = each.ok_or_else(|| wrong(tasks, &text))?;
    Ok(Some((list, names.into_iter().zip(each).collect())))
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
fn each_of(text: &str) -> Option<Vec<u32>> {
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
        assert_eq!(each_of("2(x3),1"), Some(vec![2, 2, 2, 1]));
        for text in ["", "0", "x", "2(x", "2(xx)", "1(x99999999)"] {
            assert_eq!(each_of(text), None, "{text}");
        }
    }

    fn told(variables: &[(&str, &str)]) -> Result<String, String> {
        let of = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let found = hosts(|name| of(name).map(|(_, value)| value.to_string()))?;
        Ok(found.map_or("none".to_string(), |(_, hosts)| {
            let hosts: Vec<_> = hosts.iter().map(|(host, tasks)| format!("{host}:{tasks}")).collect();
            hosts.join(",")
        }))
    }

    #[test]
    fn a_job_of_slurm_has_hosts_and_tasks() {
        let job = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "n[1-2]")];
        let with = |more: &[(&'static str, &'static str)]| told(&[&job[..], more].concat());
        let tasks = |tasks| ("SLURM_TASKS_PER_NODE", tasks);
        assert_eq!(with(&[tasks("4,2")]).as_deref(), Ok("n1:4,n2:2"));
        assert_eq!(with(&[]).as_deref(), Ok("n1:1,n2:1"));
        assert_eq!(told(&job[1..]).as_deref(), Ok("none"));
        assert!(with(&[tasks("4")]).unwrap_err().contains("SLURM_TASKS_PER_NODE=\"4\""));
        assert!(with(&[("SLURM_HET_SIZE", "2")]).unwrap_err().contains("several parts"));
    }

    #[test]
    fn a_step_has_its_part_of_them() {
        // srun has set the number of tasks for its own node.
        let step = |id| {
            told(&[
                ("SLURM_JOB_ID", "7"),
                ("SLURM_JOB_NODELIST", "n[1-2]"),
                ("SLURM_TASKS_PER_NODE", "1"),
                ("SLURM_STEP_ID", id),
                ("SLURM_STEP_NODELIST", "n2"),
                ("SLURM_STEP_TASKS_PER_NODE", "3"),
            ])
        };
        assert_eq!(step("0").as_deref(), Ok("n2:3"));
        let interactive = step("4294967290").unwrap_err();
        assert!(interactive.contains("SLURM_TASKS_PER_NODE"), "{interactive}");
    }
}

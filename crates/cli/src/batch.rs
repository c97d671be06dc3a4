//! The hosts that a batch system has given to the job that this process runs in: PBS and Torque, LSF, Grid Engine, Cobalt
//! as hydra reads them, and Slurm.

use std::path::Path;

use crate::host_names::{of_file, slots};
use crate::slurm::{self, Allotted};
use crate::text_file;

/// The longest file of hosts that is accepted, in bytes.
const LONGEST: u64 = 4 << 20;

/// The hosts of this process's job; none outside of a batch job.
///
/// # Errors
/// A batch system names hosts in a way that cannot be read.
pub fn hosts(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Allotted>, String> {
    if let Some(allotted) = slurm::hosts(&variable)? {
        return Ok(Some(allotted));
    }
    for (name, read) in SYSTEMS {
        let Some(value) = variable(name).filter(|value| !value.is_empty()) else {
            continue;
        };
        let hosts = read(&value).and_then(|hosts| match hosts.is_empty() {
            true => Err("it names no host".to_string()),
            false => Ok(hosts),
        });
        let wrong = |why| format!("{name}={value:?} cannot be read: {why}; write the hosts with -hosts");
        return Ok(Some((name, merged(hosts.map_err(wrong)?))));
    }
    Ok(None)
}

type Read = fn(&str) -> Result<Vec<(String, u32)>, String>;

/// By variable, in the order in which they are looked for.
const SYSTEMS: [(&str, Read); 5] = [
    ("PBS_NODEFILE", a_line_a_slot),
    ("LSB_MCPU_HOSTS", pairs),
    ("LSB_DJOB_HOSTFILE", a_line_a_slot),
    ("PE_HOSTFILE", lines_with_slots),
    ("COBALT_NODEFILE", a_line_a_slot),
];

/// PBS, LSF and Cobalt: a file with a line for each slot, or `host:slots`.
fn a_line_a_slot(file: &str) -> Result<Vec<(String, u32)>, String> {
    let hosts = of_file(Path::new(file))?;
    Ok(hosts.into_iter().map(|(host, slots, _)| (host, slots)).collect())
}

/// LSF: `host slots host slots`.
fn pairs(text: &str) -> Result<Vec<(String, u32)>, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pairs = words.chunks(2).map(|pair| match pair {
        [host, count] => slots(&format!("{host}:{count}")),
        _ => Err("a number of slots is missing".to_string()),
    });
    pairs.collect()
}

/// Grid Engine: a file with a line for each host: `host slots queue processors`.
fn lines_with_slots(file: &str) -> Result<Vec<(String, u32)>, String> {
    let text = text_file::read(Path::new(file), LONGEST)?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(|line| line.split_whitespace().take(2).collect());
    let lines = lines.filter(|words: &Vec<&str>| !words.is_empty());
    lines.map(|words| slots(&words.join(":"))).collect()
}

/// Each host once, in the order of their first lines.
fn merged(hosts: Vec<(String, u32)>) -> Vec<(String, u32)> {
    let mut all: Vec<(String, u32)> = Vec::new();
    let mut places = std::collections::HashMap::new();
    for (host, slots) in hosts {
        let place = *places.entry(host.clone()).or_insert(all.len());
        match all.get_mut(place) {
            Some((_, sum)) => *sum = sum.saturating_add(slots),
            None => all.push((host, slots)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(variables: &[(&str, &str)]) -> Result<String, String> {
        let of = |name: &str| variables.iter().find(|(known, _)| *known == name);
        let found = hosts(|name| of(name).map(|(_, value)| value.to_string()))?;
        Ok(found.map_or("none".to_string(), |(name, hosts)| {
            let hosts: Vec<_> = hosts.iter().map(|(host, slots)| format!("{host}:{slots}")).collect();
            format!("{name} {}", hosts.join(","))
        }))
    }

    #[test]
    fn batch_systems_name_hosts() {
        let directory = std::env::temp_dir();
        let file = |name: &str, text: &str| {
            let path = directory.join(format!("resurgo-batch-{}-{name}", std::process::id()));
            std::fs::write(&path, text).unwrap();
            path.into_os_string().into_string().unwrap()
        };
        let lines = file("lines", "n1.x\nn1.x\nn2.x\nn1.x\n");
        let engine = file("engine", "n1.x 4 all.q@n1.x UNDEFINED\nn2.x 2 all.q@n2.x <NULL>\n");
        let nobody = file("nobody", "\n");
        for (name, value, expected) in [
            ("PBS_NODEFILE", &lines, "PBS_NODEFILE n1.x:3,n2.x:1"),
            ("COBALT_NODEFILE", &lines, "COBALT_NODEFILE n1.x:3,n2.x:1"),
            ("LSB_DJOB_HOSTFILE", &lines, "LSB_DJOB_HOSTFILE n1.x:3,n2.x:1"),
            (
                "LSB_MCPU_HOSTS",
                &"n1 4 n2 2 n1 1".to_string(),
                "LSB_MCPU_HOSTS n1:5,n2:2",
            ),
            ("PE_HOSTFILE", &engine, "PE_HOSTFILE n1.x:4,n2.x:2"),
        ] {
            assert_eq!(told(&[(name, value)]).as_deref(), Ok(expected));
        }
        assert_eq!(told(&[]).as_deref(), Ok("none"));
        assert_eq!(told(&[("PBS_NODEFILE", "")]).as_deref(), Ok("none"));
        for (name, value, why) in [
            ("PBS_NODEFILE", "/nowhere/to/be/found", "No such file"),
            ("PBS_NODEFILE", nobody.as_str(), "names no host"),
            ("LSB_MCPU_HOSTS", "n1 4 n2", "is missing"),
            ("LSB_MCPU_HOSTS", "n1 0", "no number of slots"),
            ("PE_HOSTFILE", "/dev/zero", "cannot be read"),
        ] {
            let refused = told(&[(name, value)]).unwrap_err();
            assert!(
                refused.contains(why) && refused.contains(name) && refused.contains("-hosts"),
                "{refused}"
            );
        }
        for path in [lines, engine, nobody] {
            std::fs::remove_file(path).unwrap();
        }
    }
}

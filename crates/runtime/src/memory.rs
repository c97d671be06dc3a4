//! How much memory this process and its children may still use: what the system has free, or what the control groups
//! of Slurm, containers or systemd leave.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Bytes; None if the system does not say.
pub fn available() -> Option<u64> {
    let system = entry(&read_to_string("/proc/meminfo").ok()?, "MemAvailable:").map(|kilobytes| kilobytes << 10);
    let groups = read_to_string("/proc/self/cgroup").unwrap_or_default();
    system
        .into_iter()
        .chain(left_by_groups(&groups, Path::new("/sys/fs/cgroup")))
        .min()
}

/// Bytes that the processes `pids` alone hold in memory.
pub fn held_by(pids: impl Iterator<Item = i32>) -> u64 {
    let pages = |pid: i32| {
        let text = read_to_string(format!("/proc/{pid}/statm")).ok()?;
        let [resident, shared] = [1, 2].map(|field| text.split(' ').nth(field)?.trim().parse::<u64>().ok());
        Some(resident?.saturating_sub(shared?))
    };
    pids.filter_map(pages).sum::<u64>() << 12
}

/// The number behind `name` in lines of names and numbers.
fn entry(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// What the groups in `groups` (as in /proc/self/cgroup), and the groups around them, leave, where they have a limit.
/// File pages that were not used lately do not count as used.
fn left_by_groups(groups: &str, root: &Path) -> impl Iterator<Item = u64> {
    let memory_group = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        match (fields.next()?, fields.next()?.trim_start_matches('/')) {
            // The second version has one hierarchy, without a name.
            ("", path) if root.join(path).join("memory.max").exists() => Some((root.to_owned(), path.to_owned())),
            (controllers, path) if controllers.split(',').any(|name| name == "memory") => {
                Some((root.join("memory"), path.to_owned()))
            }
            _ => None,
        }
    });
    let folders: Vec<PathBuf> = memory_group
        .map(|(top, path)| top.join(path).ancestors().map(Path::to_owned).collect())
        .unwrap_or_default();
    folders.into_iter().filter_map(|folder| {
        let number = |name: &str| read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
        let (limit, used, cache) = match number("memory.max") {
            Some(limit) => (limit, number("memory.current")?, "inactive_file "),
            None => (
                number("memory.limit_in_bytes")?,
                number("memory.usage_in_bytes")?,
                "total_inactive_file ",
            ),
        };
        let statistics = read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let cached = entry(&statistics, cache).unwrap_or(0);
        Some(limit.saturating_sub(used.saturating_sub(cached)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{create_dir_all, write};

    fn group(folder: &Path, files: &[(&str, &str)]) {
        create_dir_all(folder).unwrap();
        files
            .iter()
            .for_each(|(name, text)| write(folder.join(name), text).unwrap());
    }

    #[test]
    fn limits_of_groups_count_and_of_those_around_them() {
        let root = std::env::temp_dir().join(format!("resurgo-groups-{}", std::process::id()));
        let second = root.join("second");
        group(
            &second.join("slurm/job_7"),
            &[("memory.max", "max\n"), ("memory.current", "5\n")],
        );
        group(
            &second.join("slurm"),
            &[
                ("memory.max", "1000\n"),
                ("memory.current", "700\n"),
                ("memory.stat", "anon 9\ninactive_file 100\n"),
            ],
        );
        let left: Vec<u64> = left_by_groups("0::/slurm/job_7\n", &second).collect();
        assert_eq!(left, [400]);
        let first = root.join("first");
        group(
            &first.join("memory/box"),
            &[("memory.limit_in_bytes", "50\n"), ("memory.usage_in_bytes", "60\n")],
        );
        let left: Vec<u64> = left_by_groups("9:cpu:/\n4:memory:/box\n0::/\n", &first).collect();
        assert_eq!(left, [0]);
        assert_eq!(left_by_groups("", &first).count(), 0);
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn there_is_some() {
        assert!(available().unwrap() > 1 << 20);
        assert!(held_by(std::iter::once(std::process::id() as i32)) > 1 << 16);
    }
}

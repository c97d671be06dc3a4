//! Which machine a process runs on, whatever that is called.

use std::path::PathBuf;

/// Containers and emulated nodes have some of these for themselves: each is a machine of its own.
const NAMESPACES: [&str; 6] = ["ipc", "mnt", "net", "pid", "user", "uts"];

/// A text that processes of one machine have in common, and those of others do not. `host`: what the machine calls
/// itself; copies of a running virtual machine may differ in nothing else. None: it cannot be told here.
pub fn of_this_process(host: &str) -> Option<String> {
    let own = NAMESPACES.map(|name| std::fs::read_link(format!("/proc/self/ns/{name}")).ok());
    let own: Option<Vec<PathBuf>> = own.into_iter().collect();
    let own: Vec<String> = own?.iter().map(|space| space.display().to_string()).collect();
    Some(format!("{} {host} {}", boot()?, own.join(" ")))
}

/// A text that differs after each start of the kernel.
pub fn boot() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_like_itself_only() {
        let own = of_this_process("n1");
        assert!(own.is_some());
        assert_eq!(own, of_this_process("n1"));
        assert_ne!(own, of_this_process("n2"));
    }
}

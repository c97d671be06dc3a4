//! Hosts that a command line asks for: this version runs on one node, and that is the one it is started on.

use std::net::{IpAddr, ToSocketAddrs, UdpSocket};
use std::path::Path;

use nix::unistd::gethostname;

use crate::check::Refusal;
use crate::options::Hosts;
use crate::text_file;

/// The longest host file that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// Refuses hosts other than this machine. Files are named from `here`.
pub fn check(asked: &[Hosts], here: &Path) -> Result<(), Refusal> {
    for hosts in asked {
        let (option, shown, names) = match hosts {
            Hosts::Listed(option, list) => {
                let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
                (option, list.clone(), names.map(str::to_string).collect())
            }
            Hosts::InFile(option, file) => {
                let shown = file.display().to_string();
                let names =
                    listed(&here.join(file)).map_err(|error| Refusal::new(2, format!("{option} {shown}: {error}")))?;
                (option, shown, names)
            }
        };
        if names.is_empty() {
            return Err(Refusal::new(
                2,
                format!("{option} {shown}: names no host; leave it out"),
            ));
        }
        if let Some(other) = names
            .iter()
            .map(|name| without_count(name))
            .find(|name| !is_this_machine(name))
        {
            let other: String = other.chars().take(80).flat_map(char::escape_default).collect();
            return Err(Refusal::new(
                2,
                format!(
                    "{option}: {other} is not this machine, and there is one node in this version: the one resurgo is started \
                     on; leave {option} out"
                ),
            ));
        }
    }
    Ok(())
}

/// The hosts of a host file: the first word of each line.
fn listed(file: &Path) -> Result<Vec<String>, String> {
    let text = text_file::read(file, LONGEST)?;
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    Ok(lines
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_string)
        .collect())
}

/// `host` for `host:4` and `[::1]:4`.
fn without_count(name: &str) -> &str {
    if let Some(rest) = name.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    match name.split_once(':') {
        Some((host, rest)) if !rest.contains(':') => host,
        _ => name,
    }
}

fn is_this_machine(name: &str) -> bool {
    if let Ok(address) = name.parse::<IpAddr>() {
        return is_own(address);
    }
    let name = name.to_ascii_lowercase();
    let own = gethostname()
        .map(|own| own.to_string_lossy().to_ascii_lowercase())
        .unwrap_or_default();
    if ["localhost", "localhost.localdomain"].contains(&name.as_str()) || is_same(&name, &own) {
        return true;
    }
    let sane = name.len() < 254
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let addresses = sane.then(|| (name.as_str(), 0).to_socket_addrs().ok()).flatten();
    addresses.into_iter().flatten().any(|address| is_own(address.ip()))
}

/// Names of one host, with or without its domain.
fn is_same(name: &str, own: &str) -> bool {
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    !name.is_empty() && (name == own || (short(name) == short(own) && !(name.contains('.') && own.contains('.'))))
}

/// Sockets can be bound to addresses of this machine only.
fn is_own(address: IpAddr) -> bool {
    !address.is_unspecified() && UdpSocket::bind((address, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(list: &str) -> Option<String> {
        let hosts = [Hosts::Listed("-hosts".to_string(), list.to_string())];
        check(&hosts, Path::new("/")).err().map(|refusal| refusal.text)
    }

    #[test]
    fn only_this_machine_is_accepted() {
        let own = gethostname().unwrap().to_string_lossy().into_owned();
        for list in [
            "localhost",
            "localhost:4",
            "127.0.0.1,localhost",
            "::1",
            "[::1]:2",
            &own,
            &format!("{own}:2,"),
        ] {
            // A machine may be without IPv6.
            if list.contains("::") && UdpSocket::bind("[::1]:0").is_err() {
                continue;
            }
            assert_eq!(refusal(list), None, "{list}");
        }
        for list in ["localhost,192.0.2.7", "no-such-host.invalid", "a\x1b[31m", "0.0.0.0"] {
            assert!(refusal(list).unwrap().contains("one node in this version"), "{list}");
        }
        assert!(refusal(",").unwrap().contains("names no host"));
        assert!(!refusal("a\x1b[31m").unwrap().contains('\x1b'));
    }

    #[test]
    fn names_with_and_without_a_domain() {
        assert!(is_same("n1", "n1.cluster") && is_same("n1.cluster", "n1") && is_same("n1.a", "n1.a"));
        assert!(!is_same("n1.a", "n1.b") && !is_same("n2", "n1") && !is_same("", ""));
    }

    #[test]
    fn files_list_hosts() {
        let file = std::env::temp_dir().join(format!("resurgo-hosts-{}", std::process::id()));
        let hosts = [Hosts::InFile("-f".to_string(), file.clone())];
        let check = || check(&hosts, Path::new("/")).map_err(|refusal| refusal.text);
        std::fs::write(&file, "# all\nlocalhost slots=4\n\n127.0.0.1:2 # again\n").unwrap();
        assert_eq!(check(), Ok(()));
        std::fs::write(&file, "localhost\n192.0.2.7\n").unwrap();
        assert!(check().unwrap_err().contains("192.0.2.7 is not this machine"));
        std::fs::write(&file, "# nobody\n").unwrap();
        assert!(check().unwrap_err().contains("names no host"));
        std::fs::remove_file(&file).unwrap();
        assert!(check().unwrap_err().contains("No such file"));
        let zeros = [Hosts::InFile("-f".to_string(), "/dev/zero".into())];
        assert!(super::check(&zeros, Path::new("/")).is_err());
    }
}

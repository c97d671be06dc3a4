//! Network interfaces of this machine, and which of their addresses others can reach.

use std::io;
use std::net::IpAddr;

use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;

/// An address of an interface.
pub struct Interface {
    pub name: String,
    pub ip: IpAddr,
    pub is_up: bool,
}

/// Each address of each interface.
///
/// # Errors
/// The system does not answer.
pub fn all() -> io::Result<impl Iterator<Item = Interface>> {
    Ok(getifaddrs()?.filter_map(|interface| {
        let address = interface.address?;
        let v4 = address.as_sockaddr_in().map(|address| IpAddr::from(address.ip()));
        let ip = v4.or_else(|| address.as_sockaddr_in6().map(|address| address.ip().into()))?;
        Some(Interface {
            is_up: interface.flags.contains(InterfaceFlags::IFF_UP),
            name: interface.interface_name,
            ip,
        })
    }))
}

/// Others on the network can reach it, as far as the address itself tells.
pub fn leads_elsewhere(ip: &IpAddr) -> bool {
    let is_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !is_local && !ip.is_loopback() && !ip.is_unspecified()
}

/// All addresses at which others may reach this machine, IPv4 first; none if the system does not answer. `only`: of the
/// interface of this name, or of those with an address in this network (CIDR).
///
/// # Errors
/// This machine has no such interface.
pub fn own_addresses(only: Option<&str>) -> Result<Vec<IpAddr>, String> {
    let is_wanted = |interface: &Interface| match only {
        None => leads_elsewhere(&interface.ip),
        Some(name) if name == interface.name => is_usable(&interface.ip),
        Some(network) => is_in(&interface.ip, network),
    };
    let addresses = all().into_iter().flatten().filter(is_wanted);
    let mut all: Vec<IpAddr> = addresses.map(|interface| interface.ip).collect();
    all.sort_by_key(IpAddr::is_ipv6);
    match only.filter(|_| all.is_empty()) {
        Some(only) => Err(format!(
            "--interface {only}: no interface has that name, or an address in that network"
        )),
        None => Ok(all),
    }
}

/// It needs no scope to be reached.
fn is_usable(ip: &IpAddr) -> bool {
    match ip {
        IpAddr::V4(_) => true,
        IpAddr::V6(ip) => !ip.is_unicast_link_local(),
    }
}

/// The address is in a network such as 10.1.0.0/16, or is that one.
pub fn is_in(ip: &IpAddr, network: &str) -> bool {
    let (base, bits) = match network.split_once('/') {
        Some((base, bits)) => (base, bits.parse::<u32>().ok()),
        None => (network, Some(128)),
    };
    let number = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)) << 96, 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    let (Some(bits), Ok(base)) = (bits, base.parse::<IpAddr>()) else {
        return false;
    };
    let ((ours, width), (theirs, other)) = (number(*ip), number(base));
    let differ = (ours ^ theirs).leading_zeros();
    width == other && differ >= bits.min(width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_names_choose_addresses() {
        let is_in = |ip: &str, network| is_in(&ip.parse().unwrap(), network);
        assert!(is_in("10.1.2.3", "10.1.0.0/16") && is_in("10.1.2.3", "10.1.2.3") && is_in("10.1.2.3", "0.0.0.0/0"));
        assert!(!is_in("10.2.2.3", "10.1.0.0/16") && !is_in("10.1.2.3", "eth0") && !is_in("10.1.2.3", "10.1.0.0/x"));
        assert!(is_in("fd00:1::2", "fd00:1::/64") && !is_in("fd00:2::2", "fd00:1::/64"));
        assert!(!is_in("10.1.2.3", "::/0"), "of the other kind");
        assert_eq!(own_addresses(Some("lo")).unwrap()[0].to_string(), "127.0.0.1");
        assert!(
            own_addresses(Some("nothing0"))
                .unwrap_err()
                .contains("--interface nothing0")
        );
    }
}

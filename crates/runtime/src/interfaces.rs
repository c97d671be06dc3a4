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
/// The system does not say.
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

/// All by which others may reach this machine, IPv4 first; none where it does not say.
pub fn own_addresses() -> Vec<IpAddr> {
    let addresses = all().into_iter().flatten().map(|interface| interface.ip);
    let mut all: Vec<IpAddr> = addresses.filter(leads_elsewhere).collect();
    all.sort_by_key(IpAddr::is_ipv6);
    all
}

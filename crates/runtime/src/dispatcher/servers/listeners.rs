//! Where the job's servers listen, and by which address ranks reach them.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use resurgo_wire::handshake::Server;

use crate::interfaces;

/// Servers of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listeners {
    pub kind: Server,
    pub count: usize,
    /// Where the first listens; the others are on the same address, at any port.
    pub first: SocketAddr,
    /// Others speak to them encrypted.
    pub are_encrypted: bool,
}

impl Listeners {
    /// Where one of them listens.
    pub(super) fn bind(&self, number: usize) -> SocketAddr {
        match number {
            0 => self.first,
            _ => SocketAddr::new(self.first.ip(), 0),
        }
    }
}

/// The address by which the ranks of a node reach a server of this machine that listens on `listens`. `known_as`: the address by which
/// that node knows this machine; none: it is this one.
///
/// # Errors
/// It listens on every address of IPv4, and this machine has none by which other nodes could reach it.
pub fn reached(listens: SocketAddr, known_as: Option<IpAddr>) -> io::Result<SocketAddr> {
    let ip = match known_as.map(|ip| ip.to_canonical()) {
        // Every address of IPv6 is one of IPv4, too.
        Some(ip) if listens.ip().is_unspecified() => match ip.is_ipv4() || listens.is_ipv6() {
            true => ip,
            false => of_this_machine()?,
        },
        _ => of_one_node(listens.ip()),
    };
    Ok(SocketAddr::new(ip, listens.port()))
}

fn of_one_node(listens: IpAddr) -> IpAddr {
    match listens {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    }
}

/// The first address of IPv4 of an interface that is up and leads elsewhere.
fn of_this_machine() -> io::Result<IpAddr> {
    let up = interfaces::all()?.filter(|interface| interface.is_up);
    first_for_others(up.map(|interface| interface.ip)).ok_or_else(|| {
        io::Error::other(
            "no interface of this machine has an address that other nodes can reach; give the one to listen on",
        )
    })
}

fn first_for_others(mut addresses: impl Iterator<Item = IpAddr>) -> Option<IpAddr> {
    addresses.find(|address| address.is_ipv4() && interfaces::leads_elsewhere(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn ranks_of_one_node_reach_a_server_that_listens_everywhere_at_home() {
        for (listens, is_reached) in [
            ("0.0.0.0:7000", "127.0.0.1:7000"),
            ("[::]:7000", "[::1]:7000"),
            ("10.0.0.1:1", "10.0.0.1:1"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
        ] {
            let listens = listens.parse().unwrap();
            assert_eq!(reached(listens, None).unwrap(), is_reached.parse().unwrap());
        }
    }

    #[test]
    fn an_address_that_the_user_gives_is_the_one_for_all_nodes() {
        for listens in ["10.0.0.1:1", "127.0.0.1:7", "[2001:db8::1]:1"] {
            let listens = listens.parse().unwrap();
            assert_eq!(reached(listens, Some(ip("10.0.0.9"))).unwrap(), listens);
        }
    }

    #[test]
    fn a_node_reaches_a_server_that_listens_everywhere_as_it_reached_this_machine() {
        for known_as in ["10.0.0.9", "::ffff:10.0.0.9"] {
            for listens in ["0.0.0.0:7", "[::]:7"] {
                let address = reached(listens.parse().unwrap(), Some(ip(known_as))).unwrap();
                assert_eq!(address, "10.0.0.9:7".parse().unwrap());
            }
        }
        let address = reached("[::]:7".parse().unwrap(), Some(ip("2001:db8::9"))).unwrap();
        assert_eq!(address, "[2001:db8::9]:7".parse().unwrap());
    }

    #[test]
    fn other_nodes_are_told_the_first_address_that_leads_out() {
        let all = [
            "127.0.0.1",
            "::1",
            "fe80::1",
            "169.254.1.1",
            "2001:db8::1",
            "10.0.0.1",
            "10.0.0.2",
        ]
        .map(ip);
        assert_eq!(first_for_others(all.into_iter()), Some(ip("10.0.0.1")));
        assert_eq!(first_for_others(all.into_iter().take(5)), None);
    }

    #[test]
    fn what_other_nodes_are_told_is_an_address_of_this_machine() {
        // A machine without a network has none.
        if let Ok(address) = reached("0.0.0.0:7000".parse().unwrap(), Some(ip("2001:db8::1"))) {
            assert!(!address.ip().is_unspecified() && !address.ip().is_loopback());
            assert!(std::net::UdpSocket::bind((address.ip(), 0)).is_ok());
        }
    }
}

//! The addresses of a job's servers, as its ranks use them. They are in the job's description for agents, and in the
//! header of the node memory.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

#[cfg(feature = "control")]
use serde::{Deserialize, Serialize};

use crate::handshake::Server;

/// The servers of a job. Servers of one kind are numbered in their order here.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(Serialize, Deserialize))]
pub struct Services(Vec<Service>);

/// Where ranks reach one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "control", derive(Serialize, Deserialize))]
pub struct Service {
    pub kind: Server,
    pub address: SocketAddr,
    /// The address is that of a tunnel to the server: what somebody on this machine has taken may never come there.
    pub is_tunnel: bool,
}

impl Services {
    pub fn add(&mut self, kind: Server, address: SocketAddr) {
        self.push(Service {
            kind,
            address,
            is_tunnel: false,
        });
    }

    pub fn push(&mut self, service: Service) {
        self.0.push(service);
    }

    pub fn iter(&self) -> impl Iterator<Item = &Service> {
        self.0.iter()
    }

    /// The addresses of the servers of one kind, by number.
    pub fn of(&self, kind: Server) -> Vec<SocketAddr> {
        let of_kind = self.0.iter().filter(|service| service.kind == kind);
        of_kind.map(|service| service.address).collect()
    }

    /// All servers are on this machine, and no tunnel is between.
    pub fn are_here(&self) -> bool {
        let is_here = |service: &Service| service.address.ip().is_loopback() && !service.is_tunnel;
        self.0.iter().all(is_here)
    }
}

impl FromIterator<Service> for Services {
    fn from_iter<I: IntoIterator<Item = Service>>(services: I) -> Self {
        Self(services.into_iter().collect())
    }
}

impl Service {
    /// Words of one server in the header of the node memory. The first has the kind in its lowest byte (0: no server),
    /// then the family (4 or 6), then 1 for a tunnel, and the port in its upper half. The others have the address,
    /// first byte lowest.
    pub const WORDS: usize = 3;

    pub fn to_words(self) -> [u64; Self::WORDS] {
        let (family, address) = match self.address.ip() {
            IpAddr::V4(ip) => (4, ip.to_ipv6_compatible()),
            IpAddr::V6(ip) => (6, ip),
        };
        let address = u128::from_le_bytes(address.octets());
        let kind = u64::from(self.kind.number()) | family << 8 | u64::from(self.is_tunnel) << 16;
        let first = kind | u64::from(self.address.port()) << 32;
        [first, address as u64, (address >> 64) as u64]
    }

    /// None: no server, or one of a kind that this version does not know.
    pub fn from_words([first, low, high]: [u64; Self::WORDS]) -> Option<Self> {
        let kind = Server::numbered(first as u8)?;
        let address = (u128::from(high) << 64 | u128::from(low)).to_le_bytes();
        let ip = match (first >> 8) as u8 {
            4 => IpAddr::V4(Ipv4Addr::new(address[12], address[13], address[14], address[15])),
            6 => IpAddr::V6(Ipv6Addr::from(address)),
            _ => return None,
        };
        let address = SocketAddr::new(ip, (first >> 32) as u16);
        Some(Self {
            kind,
            address,
            is_tunnel: (first >> 16) as u8 == 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_read_from_its_words_as_it_was() {
        for address in [
            "127.0.0.1:7000",
            "10.1.2.3:65535",
            "[::1]:1",
            "[2001:db8::ff:1]:443",
            "[::10.1.2.3]:80",
        ] {
            for kind in Server::ALL {
                let address = address.parse().unwrap();
                for is_tunnel in [false, true] {
                    let service = Service {
                        kind,
                        address,
                        is_tunnel,
                    };
                    assert_eq!(Service::from_words(service.to_words()), Some(service));
                }
            }
        }
    }

    #[test]
    fn what_is_no_service_is_none() {
        let service = Service {
            kind: Server::EventLogger,
            address: "127.0.0.1:7000".parse().unwrap(),
            is_tunnel: false,
        };
        let [first, low, high] = service.to_words();
        for wrong in [0, first & !0xff, first | 0xff, first & !0xff00, first | 0xff00] {
            assert_eq!(Service::from_words([wrong, low, high]), None, "{wrong:x}");
        }
    }

    #[test]
    fn servers_are_numbered_by_kind() {
        let mut services = Services::default();
        let address = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        for (kind, port) in [
            (Server::ChannelMemory, 1),
            (Server::EventLogger, 2),
            (Server::ChannelMemory, 3),
        ] {
            services.add(kind, address(port));
        }
        assert_eq!(services.of(Server::ChannelMemory), [address(1), address(3)]);
        assert_eq!(services.of(Server::EventLogger), [address(2)]);
    }
}

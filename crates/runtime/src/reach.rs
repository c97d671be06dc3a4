//! Whether other nodes can be reached by TCP.

use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::Duration;

/// The time limit for one address.
const PATIENCE: Duration = Duration::from_secs(3);

/// Tries to reach all of several at the same time. Returns the reason for each that has no reachable address.
pub fn all(several: &[Vec<SocketAddr>]) -> Vec<Option<String>> {
    thread::scope(|scope| {
        let tries: Vec<_> = several.iter().map(|addresses| scope.spawn(|| one(addresses))).collect();
        let lost = || Some("it could not be tried".to_string());
        tries
            .into_iter()
            .map(|tried| tried.join().unwrap_or_else(|_| lost()))
            .collect()
    })
}

fn one(addresses: &[SocketAddr]) -> Option<String> {
    let mut tried = Vec::new();
    for address in addresses {
        match TcpStream::connect_timeout(address, PATIENCE) {
            Ok(_) => return None,
            Err(error) => tried.push(format!("{address} ({error})")),
        }
    }
    Some(format!("{}; a firewall may be between them", tried.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_is_reached_and_nobody_else() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let (_taken, nobody) = crate::sys::nobodys_address();
        let found = all(&[vec![here], vec![nobody], vec![nobody, here], Vec::new()]);
        let are_reached: Vec<bool> = found.iter().map(Option::is_none).collect();
        assert_eq!(are_reached, [true, false, true, false]);
        assert!(found[1].as_ref().unwrap().contains(&nobody.to_string()));
    }
}

//! Places where images of a job are kept beyond its machines: shared directories, checkpoint servers, object stores.
//!
//! A place holds *generations* of a job: files of all its nodes that together let the job go on. A generation is whole,
//! or it does not count. How to use it:
//!
//! ```text
//! every process     Places::parse(--store)?.0, and of each: Store::open(described, true, key)
//!
//! launcher          generation = store.begin(job, number)            store.renew(job, generation), each minute
//! each node         note = sender.send(generation, files)            a Sender for the job's life
//! launcher          store.commit(job, generation, about, notes)      now it counts; or store.abandon(job, generation)
//! launcher          store.gc(job, keep, GRACE)                       at times; any process may, also several
//!
//! to go on          generation = store.find(job, None)
//!                   fetch_from(&stores, job, number, &wanted, directory)
//! ```
//!
//! Numbers of generations go up. The same number at several places is the same generation: `fetch_from` reads each
//! chunk from the nearest place that has it whole.
//!
//! Calls block. Nothing is kept open that a killed process would leave behind, and any call may be repeated.

mod chunk;
mod dir;
mod error;
mod fetch;
mod gc;
mod key;
mod line;
pub mod name;
mod objects;
pub mod own_directory;
mod pace;
mod pack;
mod place;
mod places;
mod private;
mod records;
mod sender;
mod server;
mod server_key;
mod servers;
mod store;
#[cfg(test)]
mod tests;

pub use dir::Dir;
pub use error::{Error, Kind};
pub use fetch::{Fetched, check, everything, fetch, fetch_from};
pub use gc::{GRACE, Swept};
pub use key::StoreKey;
pub use name::Generation;
pub use objects::{Objects, Variables};
pub use place::{Entry, MOST_BYTES, Place};
pub use places::{Described, KEY_VARIABLE, Location, PORT, Places, STARTED_KEY, rate, usual_directory};
pub use records::{About, FileEntry, Manifest, Part, PartNote};
pub use sender::{Progress, Sender, Source};
pub use server::{Server, Settings};
pub use servers::Servers;
pub use store::Store;

/// Bytes that cannot be guessed.
fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut bytes);
    filled.map_err(|_| std::io::Error::other("the system has no random bytes"))?;
    Ok(bytes)
}
